// The outbox: what is waiting, what was delivered, what is dead; with each delivery's attempts.

import { begin, call } from "./api.js";
import { $, badge, h, relative } from "./dom.js";

let cursor = null;
let older = [];
let paused = false;
const drawn = new Map();

const EVENTS = { "experience.flow_node.webhook": "Webhook node", "experience.logic_action.webhook": "Logic action" };

function row(delivery) {
  return h(
    "tr",
    { "data-testid": `delivery-${delivery.id}`, "data-status": delivery.status },
    h("td", {}, badge(delivery.status)),
    h("td", {}, h("button", { class: "quiet small", "data-id": delivery.id, click: () => show(delivery.id) }, `${delivery.method} ${delivery.url}`)),
    h("td", {}, EVENTS[delivery.eventType] ?? delivery.eventType),
    h("td", { "data-label": "attempts" }, `${delivery.attempts} of ${delivery.maxAttempts}`),
    h("td", { "data-label": "created", title: delivery.createdAt }, relative(delivery.createdAt)),
    h("td", { "data-label": "next attempt", title: delivery.nextAttemptAt ?? "" }, relative(delivery.nextAttemptAt)),
  );
}

async function page(from) {
  const query = new URLSearchParams({ limit: "50" });
  if ($("#status").value) query.set("status", $("#status").value);
  if (from) query.set("cursor", from);
  return call(`/v1/webhooks/outbox?${query}`);
}

// A row that has not changed stays the same element, so that an update never takes a click or the focus away.
function kept(delivery) {
  const state = JSON.stringify([delivery, relative(delivery.createdAt), relative(delivery.nextAttemptAt)]);
  const before = drawn.get(delivery.id);
  if (before?.state === state) return before.element;
  const element = row(delivery);
  if (before && before.element.dataset.status === delivery.status) {
    [...element.cells].forEach((cell, index) => index !== 1 && before.element.cells[index].replaceWith(cell));
    drawn.set(delivery.id, { state, element: before.element });
    return before.element;
  }
  drawn.set(delivery.id, { state, element });
  return element;
}

async function refresh() {
  const newest = await page();
  const known = new Set(newest.data.map(({ id }) => id));
  if (!older.length) cursor = newest.nextCursor;
  const all = [...newest.data, ...older.filter(({ id }) => !known.has(id))];
  const rows = all.map(kept);
  if (rows.some((element, index) => $("#rows").children[index] !== element) || rows.length !== $("#rows").children.length) {
    const focused = document.activeElement?.dataset?.id;
    $("#rows").replaceChildren(...rows);
    if (focused) $(`[data-id="${focused}"]`)?.focus();
  }
  $("#empty").hidden = all.length > 0;
  $("#more").hidden = !cursor;
  $("#replay").hidden = $("#status").value !== "dead" || !all.length;
  $("#problem").textContent = "";
}

async function show(id) {
  const { data } = await call(`/v1/webhooks/outbox/${id}`);
  const dialog = $("#detail");
  const attempts = data.attemptLog.map((attempt) =>
    h("div", {}, h("p", {}, h("strong", {}, `Attempt ${attempt.number}`), `: ${attempt.statusCode ?? attempt.error ?? ""}, ${attempt.durationMs} ms, ${new Date(attempt.startedAt).toLocaleString()}`), attempt.response ? h("pre", {}, attempt.response) : null),
  );
  const retry = h("button", { click: () => act(id, "retry") }, "Retry now");
  const cancel = h("button", { class: "danger", click: () => act(id, "cancel") }, "Cancel");
  dialog.replaceChildren(
    h("div", { class: "row spread" }, h("h2", { id: "detail-title", style: "margin:0" }, "Delivery "), badge(data.status)),
    h("dl", {}, ...Object.entries({ Destination: `${data.method} ${data.url}`, "Event id": data.eventId, Created: new Date(data.createdAt).toLocaleString(), "Last error": data.lastError ?? "none" }).flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
    h("h2", {}, "What is sent"),
    h("pre", {}, data.headers.map(({ key, value }) => `${key}: ${value}`).join("\n") + (data.body ? `\n\n${data.body}` : "")),
    h("h2", {}, "Attempts"),
    ...(attempts.length ? attempts : [h("p", { class: "muted" }, "None yet.")]),
    h("div", { class: "row" }, data.status === "dead" ? retry : null, ["pending", "retrying"].includes(data.status) ? cancel : null, h("button", { class: "quiet", click: () => dialog.close() }, "Close")),
  );
  if (!dialog.open) dialog.showModal();
}

async function act(id, what) {
  // When it is too late for that, what is drawn next shows why.
  await call(`/v1/webhooks/outbox/${id}/${what}`, { method: "POST" }).catch(() => {});
  await Promise.all([show(id), refresh()]);
}

async function replay() {
  const { data } = await call("/v1/webhooks/outbox/retry", { method: "POST", body: { all: true } });
  $("#notice").textContent = `${data.counted} deliveries are tried once more in ten seconds. The operator pages can stop it.`;
  older = [];
  await refresh();
}

const attempt = () => refresh().catch((error) => { $("#problem").textContent = error.message; });

await begin();
$("#status").addEventListener("change", () => { older = []; $("#notice").textContent = ""; attempt(); });
$("#replay").addEventListener("click", () => replay().catch((error) => { $("#problem").textContent = error.message; }));
$("#pause").addEventListener("click", () => {
  paused = !paused;
  $("#pause").setAttribute("aria-pressed", String(paused));
  $("#pause").textContent = paused ? "Resume updates" : "Pause updates";
});
$("#more").addEventListener("click", async () => {
  const next = await page(cursor);
  older = [...older, ...next.data];
  cursor = next.nextCursor;
  await attempt();
});
await attempt();
setInterval(() => paused || attempt(), 2000);
