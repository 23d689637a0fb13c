// The pages work without this. It shows and reads times in the reader's zone, brings what is shown up to date, and copies.
"use strict";

const main = document.getElementById("main");

const SHORT = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
const THIS_YEAR = new Intl.DateTimeFormat(undefined, SHORT);
const ANY_YEAR = new Intl.DateTimeFormat(undefined, { ...SHORT, year: "numeric" });

function local(moment) {
  return (moment.getFullYear() === new Date().getFullYear() ? THIS_YEAR : ANY_YEAR).format(moment);
}

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const MINUTE = new Intl.DateTimeFormat(undefined, { ...SHORT, second: undefined });

function localize(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    const utc = `${time.dateTime.slice(0, 10)} ${time.dateTime.slice(11, 19)} UTC`;
    time.title = "ago" in time.dataset ? `${local(moment)} · ${utc}` : utc;
    if ("ago" in time.dataset) continue;
    const form = "clock" in time.dataset ? CLOCK : "minute" in time.dataset ? MINUTE : null;
    time.textContent = form ? form.format(moment) : local(moment);
    if ("both" in time.dataset && moment.getTimezoneOffset()) {
      const beside = document.createElement("span");
      beside.className = "utc";
      beside.textContent = ` ${utc}`;
      time.append(beside);
    }
  }
}

const pad = (number, size = 2) => String(number).padStart(size, "0");

function offset(moment) {
  const minutes = -moment.getTimezoneOffset();
  const size = Math.abs(minutes);
  return `${minutes < 0 ? "-" : "+"}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}

function nameZone() {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  for (const place of document.querySelectorAll("[data-zone]")) {
    place.textContent = place.dataset.zone && zone !== "UTC" ? `${zone} (UTC${offset(new Date())})` : zone;
  }
}

// A field of a time shows it in the reader's zone. What is sent has the offset, so a link means the same time everywhere.

const WORDS = /^(?:(today|yesterday)|(\d{4})-(\d\d)-(\d\d))?(?:(?:^|[ T])(\d{1,2}):(\d\d)(?::(\d\d))?)?$/i;

function written(moment, between = " ") {
  const day = `${pad(moment.getFullYear(), 4)}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
  return `${day}${between}${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}`;
}

// Returns the time of words that name no zone; null for anything else, which the server reads or refuses.
function understood(text) {
  const found = WORDS.exec(text.trim());
  if (!found || !found[0]) return null;
  const [, day, year, month, date, hour = 0, minute = 0, second = 0] = found;
  if (hour > 23 || minute > 59 || second > 59) return null;
  const now = new Date();
  const moment = year ? new Date(year, month - 1, date, hour, minute, second) : new Date(now);
  if (year) return moment.getMonth() === month - 1 && moment.getDate() === Number(date) ? moment : null;
  moment.setHours(hour, minute, second, 0);
  if (day ? day.toLowerCase() === "yesterday" : moment > now) {
    moment.setDate(moment.getDate() - 1);
    moment.setHours(hour, minute, second, 0);
  }
  return moment;
}

function addTimeFields() {
  for (const field of document.querySelectorAll("input[data-time]")) {
    const sent = field.value;
    const given = /T.*(Z|[+-]\d\d:\d\d)$/.test(sent) ? new Date(sent) : new Date(NaN);
    const shown = Number.isNaN(given.getTime()) ? null : written(given);
    field.value = shown ?? sent;
    field.form.addEventListener("formdata", (event) => {
      const moment = understood(field.value);
      const value = moment ? written(moment, "T") + offset(moment) : field.value;
      // What is not changed is sent as it came, with its fraction of a second.
      event.formData.set(field.name, field.value === shown ? sent : value);
    });
    addPicker(field);
  }
}

function addPicker(field) {
  const picker = document.createElement("input");
  picker.type = "datetime-local";
  picker.step = 1;
  picker.hidden = true;
  const name = field.labels[0].textContent;
  picker.setAttribute("aria-label", `Date and time: ${name}`);
  picker.addEventListener("input", () => { if (picker.value) field.value = picker.value.replace("T", " "); });
  const button = makeButton("Pick", () => {
    picker.hidden = !picker.hidden;
    button.setAttribute("aria-expanded", String(!picker.hidden));
    if (picker.hidden) return;
    const moment = understood(field.value) ?? new Date(new Date().setSeconds(0, 0));
    picker.value = written(moment, "T");
    picker.focus();
  });
  button.setAttribute("aria-label", `Pick: ${name}`);
  button.setAttribute("aria-expanded", "false");
  field.after(button, picker);
}

// What was shown is replaced where it stands; rows are never inserted or removed, so nothing moves under a reader.

const seen = new Map();

function remember(root) {
  for (const part of root.querySelectorAll("[data-live]")) seen.set(part.dataset.live, part.outerHTML);
}

function liveParts(root) {
  return new Map([...root.querySelectorAll("[data-live]")].map((part) => [part.dataset.live, part]));
}

function update(fresh) {
  const there = liveParts(document);
  const now = liveParts(fresh);
  for (const [key, part] of now) {
    const old = there.get(key);
    const html = part.outerHTML;
    if (!old || seen.get(key) === html) continue;
    seen.set(key, html);
    const open = [...old.querySelectorAll("details")].map((each) => each.open);
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const place = focused ? focusable(old).indexOf(focused) : -1;
    const replacement = document.importNode(part, true);
    localize(replacement);
    old.replaceWith(replacement);
    replacement.querySelectorAll("details").forEach((each, index) => { each.open = open[index] ?? each.open; });
    if (place >= 0) focusable(replacement)[place]?.focus({ preventScroll: true });
  }
  for (const [key, part] of there) {
    if (key.startsWith("row ")) part.classList.toggle("gone", !now.has(key));
  }
  const notice = document.querySelector("[data-new]");
  if (notice) notice.hidden = ![...now.keys()].some((key) => key.startsWith("row ") && !there.has(key));
  if (!fresh.getElementById("main")?.dataset.refresh) delete main.dataset.refresh;
}

function focusable(root) {
  return [...root.querySelectorAll("a, button, input, summary, [tabindex]")];
}

function makeButton(text, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", act);
  return button;
}

let paused = false;

function isReading() {
  const active = document.activeElement;
  const typing = active && active.matches("input:not([type=checkbox], [type=radio]), [type=radio]:focus-visible, textarea, select");
  const selecting = String(document.getSelection()) !== "" || document.querySelector("[data-rows] input:checked");
  const changing = main.querySelector("details.inline[open]");
  return paused || document.hidden || typing || selecting || changing;
}

async function refresh() {
  if (!isReading()) {
    try {
      const answer = await fetch(location.href, { redirect: "error", headers: { accept: "text/html" } });
      const text = await answer.text();
      // It may have begun meanwhile.
      if (answer.ok && !isReading()) {
        update(new DOMParser().parseFromString(text, "text/html"));
        say(`Updated ${written(new Date()).slice(11)}`);
      } else if (!answer.ok) {
        say(`Not up to date: the server answered ${answer.status}`, true);
      }
    } catch {
      say("Not up to date: the server does not answer", true);
    }
  }
  schedule();
}

function schedule() {
  const seconds = Number(main.dataset.refresh);
  if (seconds > 0) setTimeout(refresh, seconds * 1000);
}

let said = null;

function say(text, failed = false) {
  if (!said) return;
  said.textContent = paused ? "Updates paused" : text;
  said.classList.toggle("bad", failed && !paused);
}

function addPauseButton() {
  const who = document.querySelector(".who");
  if (!who || !main.dataset.refresh) return;
  said = document.createElement("span");
  said.className = "live";
  const button = makeButton("Pause updates", () => {
    paused = !paused;
    button.textContent = paused ? "Resume updates" : "Pause updates";
    say("Updates resumed");
  });
  button.className = "quiet";
  who.prepend(said, button);
}

// A checkbox for the page's rows; with Shift, a click selects all from the one before.

function addSelection() {
  const rows = document.querySelector("[data-rows]");
  const head = document.querySelector("th.check");
  const bar = document.querySelector("[data-bulk]");
  if (!rows || !head || !bar) return;
  const boxes = () => [...rows.querySelectorAll("input[type=checkbox]")];
  const all = document.createElement("input");
  all.type = "checkbox";
  all.setAttribute("aria-label", "Select all on this page");
  head.append(all);
  const label = bar.querySelector(".on-page");
  const buttons = [...bar.querySelectorAll("button")];
  const count = () => {
    const chosen = boxes().filter((box) => box.checked).length;
    all.checked = chosen > 0 && chosen === boxes().length;
    all.indeterminate = chosen > 0 && !all.checked;
    label.textContent = chosen ? `${chosen} selected on this page:` : "None selected on this page:";
    for (const button of buttons) button.disabled = !chosen;
  };
  all.addEventListener("change", () => {
    for (const box of boxes()) box.checked = all.checked;
    count();
  });
  let last = null;
  rows.addEventListener("click", (event) => {
    const box = event.target;
    if (!(box instanceof HTMLInputElement)) return;
    const list = boxes();
    const from = last ? list.indexOf(last) : -1;
    if (event.shiftKey && from >= 0) {
      const [start, end] = [from, list.indexOf(box)].sort((a, b) => a - b);
      for (const each of list.slice(start, end + 1)) each.checked = box.checked;
    }
    last = box;
    count();
  });
  count();
}

// Browsers have a clipboard on https only; elsewhere the text is selected and copied.

async function copy(text, element) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const selection = document.getSelection();
  const range = document.createRange();
  range.selectNodeContents(element);
  selection.removeAllRanges();
  selection.addRange(range);
  document.execCommand("copy");
  selection.removeAllRanges();
}

function addCopyButtons() {
  for (const box of document.querySelectorAll("[data-copy]")) {
    const code = box.querySelector("pre");
    const button = makeButton("Copy", async () => {
      try {
        await copy(code.textContent, code);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select and copy it";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    box.append(button);
  }
}

// Pages of a search that no index serves may be empty: the next ones are asked for until one has rows, or somebody stops it.

async function searchOn() {
  const note = main.querySelector("[data-searching]");
  const older = main.querySelector("a[rel=next]");
  if (!note || !older) return;
  const button = makeButton("Stop searching", () => button.remove());
  note.append(" ", button);
  while (button.isConnected) {
    const answer = await fetch(older.href, { redirect: "error" }).catch(() => null);
    const page = answer?.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
    if (!button.isConnected) return;
    const since = page?.querySelector("[data-searching] time");
    const next = page?.querySelector("a[rel=next]");
    if (!since || !next) return location.replace(older.href);
    localize(since.parentElement);
    note.querySelector("time").replaceWith(document.importNode(since, true));
    older.setAttribute("href", next.getAttribute("href"));
  }
}

// On a phone, the row of pages and that of states are wider than the window.

function showCurrent() {
  for (const link of document.querySelectorAll(".side [aria-current], .tabs [aria-current]")) {
    const row = link.closest("nav");
    row.scrollLeft = link.offsetLeft - row.offsetLeft - (row.clientWidth - link.offsetWidth) / 2;
  }
}

showCurrent();
addEventListener("resize", showCurrent);
remember(document);
localize(document);
nameZone();
addTimeFields();
addPauseButton();
addSelection();
addCopyButtons();
searchOn();
schedule();
