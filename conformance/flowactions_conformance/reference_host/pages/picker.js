// A searchable choice, fed by a route: {data: [{id, label, note}], nextCursor, notice}. It shows the name and keeps the
// id; an id can be typed as well.

import { call } from "./api.js";
import { h } from "./dom.js";

const DEBOUNCE_MS = 200;
const PAGES_FOR_A_NAME = 5;

async function page(route, text, cursor) {
  return call(`${route}?${new URLSearchParams({ search: text, ...(cursor ? { cursor } : {}) })}`);
}

/** Find the choice that has an id; undefined: it is not on the first pages. */
export async function lookUp(route, id) {
  let cursor = null;
  for (let read = 0; read < PAGES_FOR_A_NAME; read += 1) {
    const answer = await page(route, id, cursor);
    const found = answer.data.find((choice) => choice.id === id);
    cursor = answer.nextCursor;
    if (found || !cursor) return found;
  }
  return undefined;
}

export function picker(route, attributes, value, set) {
  const list = h("ul", { id: `${attributes.id}-choices`, role: "listbox", "aria-label": "Choices", hidden: true, mousedown: (event) => event.preventDefault() });
  const more = h("button", { type: "button", class: "quiet small", hidden: true, mousedown: (event) => event.preventDefault() }, "More …");
  const note = h("p", { class: "help", "aria-live": "polite" });
  const input = h("input", {
    ...attributes,
    placeholder: "Search by name, or enter an ID",
    role: "combobox",
    autocomplete: "off",
    spellcheck: "false",
    "aria-expanded": "false",
    "aria-controls": list.id,
    "aria-autocomplete": "list",
    focus: () => { input.select(); search(""); },
    blur: () => { commit(); close(); },
    keydown,
    input: () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => search(input.value), DEBOUNCE_MS);
    },
  });
  let chosen = { id: value, label: value, note: null };
  let waiting;
  let choices = [];
  let active = -1;
  let asked = 0;
  let searched = null; // what the choices were found by

  function show(choice) {
    chosen = choice;
    input.value = choice.label;
    input.dataset.id = choice.id;
    note.textContent = choice.label === choice.id ? "" : [`ID ${choice.id}`, choice.note].filter(Boolean).join(" · ");
    input.dispatchEvent(new Event("named", { bubbles: true }));
  }

  function close() {
    clearTimeout(waiting);
    list.hidden = true;
    more.hidden = true;
    active = -1;
    asked += 1; // an answer on its way is dropped
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  const typed = () => (input.value.trim() === chosen.label ? null : input.value.trim());

  /** Find what was typed among choices: by its name or id, or as the only one that was found by it. */
  const meant = (text, found, only) => found.find(({ id, label }) => id === text || label === text) ?? (only && found.length === 1 ? found[0] : undefined);

  /** Take what was typed: a choice, or an id until the list has come. */
  function commit() {
    const text = typed();
    if (text === null) return;
    const known = meant(text, choices, text && searched === text);
    choose(known ?? { id: text, label: text, note: null });
    if (text && !known) settle(text).catch(() => {});
  }

  async function settle(text) {
    const { data, nextCursor } = await page(route, text.slice(0, 100));
    const found = meant(text, data, !nextCursor);
    if (found && chosen.id === text && typed() === null) choose(found);
  }

  /** Show the name of the id that was saved. */
  async function resolve() {
    const found = await lookUp(route, chosen.id);
    if (found?.id === chosen.id && document.activeElement !== input) show(found);
  }

  /** Find choices; a large workspace's list is read in several answers. */
  async function search(text, cursor) {
    const mine = ++asked;
    try {
      const answer = await page(route, text.slice(0, 100), cursor);
      if (mine !== asked) return;
      choices = cursor ? [...choices, ...answer.data] : answer.data;
      searched = text.trim();
      draw(text, answer.nextCursor);
      if (!choices.length && answer.nextCursor && !answer.notice) {
        note.textContent = "Searching …";
        await search(text, answer.nextCursor);
        return;
      }
      const nothing = choices.length ? "" : answer.nextCursor ? "Nothing was found yet: choose More …" : "Nothing was found by this name.";
      note.textContent = [nothing, answer.notice].filter(Boolean).join(" ");
    } catch (error) {
      if (mine !== asked) return;
      choices = [];
      close();
      note.textContent = `${error.message} An ID can still be entered.`;
    }
  }

  function draw(text, cursor) {
    active = -1;
    list.replaceChildren(
      ...choices.map((choice, index) =>
        h("li", { role: "option", id: `${list.id}-${index}`, "data-id": choice.id, "aria-selected": "false", click: () => { choose(choice); close(); } }, choice.label, choice.note ? h("small", {}, choice.note) : null),
      ),
    );
    const open = document.activeElement === input;
    list.hidden = !choices.length || !open;
    more.hidden = !cursor || !open;
    more.onclick = () => search(text, cursor);
    input.setAttribute("aria-expanded", String(!list.hidden));
  }

  function choose(choice) {
    show(choice);
    set(choice.id);
  }

  function keydown(event) {
    if (event.key === "Escape" && !list.hidden) {
      event.preventDefault();
      return close();
    }
    if (event.key === "Enter") {
      event.preventDefault();
      if (active >= 0) choose(choices[active]);
      else commit();
      return close();
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return undefined;
    event.preventDefault();
    if (list.hidden || !choices.length) return search(typed() ?? "");
    active = active < 0 && step < 0 ? choices.length - 1 : (active + step + choices.length) % choices.length;
    [...list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === active)));
    input.setAttribute("aria-activedescendant", `${list.id}-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
    return undefined;
  }

  show(chosen);
  if (value) resolve().catch(() => {}); // the id is shown then
  const element = h("div", { class: "picker" }, input, h("div", { class: "popup" }, list, more), note);
  return { element, input, commit, focus: () => input.focus(), label: (id) => (id === chosen.id ? chosen.label : id) };
}
