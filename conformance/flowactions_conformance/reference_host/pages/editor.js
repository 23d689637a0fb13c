// The flow editor: flows and palette, the flow's items, and the form of the selected item.

import { begin, call } from "./api.js";
import { $, badge, h, icon, relative } from "./dom.js";
import { SchemaForm } from "./schema-form.js";

const STEP = { type: "step", title: "Content step", description: "Something the end user sees." };
const STEP_ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round"><rect x="4" y="4" width="16" height="16" rx="3"/><path d="M8 9h8M8 13h8M8 17h4"/></svg>';

let types = {};
let flow = null;
let selected = null;
let problems = [];

const typeOf = (item) => (item.kind === "step" ? STEP : types[item.type]);
const iconOf = (item) => icon(item.kind === "step" ? STEP_ICON : (types[item.type]?.icon ?? ""));

function summary(item) {
  if (item.kind === "step") return item.text || "";
  const { config } = item;
  return config.webhookUrl ?? config.chatMessageText ?? typeOf(item)?.description ?? "No plugin offers this type.";
}

function changed() {
  $("#status").textContent = "Not saved yet";
  drawItems();
}

function select(item) {
  selected = item;
  drawItems();
  const title = typeOf(item)?.title ?? item.type;
  $("#form-title").textContent = title;
  if (item.kind === "step") return $("#form").replaceChildren(textField(item, "title", "Title"), textField(item, "text", "Text", true));
  if (!types[item.type]) return $("#form").replaceChildren(h("p", { class: "muted" }, `No installed plugin offers “${item.type}”.`));
  $("#form").replaceChildren(new SchemaForm(types[item.type], item.config, changed).element);
}

function textField(item, name, label, area) {
  const input = h(area ? "textarea" : "input", { id: `field-${name}`, rows: area ? 4 : null, input: () => { item[name] = input.value; changed(); } });
  input.value = item[name] ?? "";
  return h("div", { class: "field" }, h("label", { for: input.id }, label), input);
}

function defaults(schema) {
  return Object.fromEntries(Object.entries(schema.properties ?? {}).filter(([, { default: value }]) => value !== undefined && !Array.isArray(value)).map(([name, { default: value }]) => [name, value]));
}

function add(type) {
  const id = crypto.randomUUID();
  const item = type === "step" ? { id, kind: "step", title: "New step", text: "" } : { id, kind: "action", type, config: defaults(types[type].configSchema) };
  flow.items.push(item);
  changed();
  select(item);
  $("#form").querySelector("input, select, textarea")?.focus();
}

function move(item, by) {
  const from = flow.items.indexOf(item);
  const to = from + by;
  if (to < 0 || to >= flow.items.length) return;
  flow.items.splice(to, 0, ...flow.items.splice(from, 1));
  changed();
  $(`[data-item-id="${item.id}"] [data-move="${by}"]`)?.focus();
}

function remove(item) {
  flow.items = flow.items.filter((other) => other !== item);
  if (selected === item) {
    selected = null;
    $("#form-title").textContent = "Settings";
    $("#form").replaceChildren(h("p", { class: "muted" }, "Choose an item of the flow to edit it."));
  }
  changed();
}

function drawItems() {
  $("#no-items").hidden = flow.items.length > 0;
  $("#items").replaceChildren(
    ...flow.items.map((item) => {
      const name = item.kind === "step" ? item.title || "Untitled step" : (typeOf(item)?.title ?? item.type);
      const moves = [[-1, "↑", "Move up"], [1, "↓", "Move down"]].map(([by, arrow, label]) => h("button", { class: "quiet small", "data-move": by, "aria-label": `${label}: ${name}`, click: () => move(item, by) }, arrow));
      return h(
        "li",
        { "data-item-id": item.id, "data-type": item.kind === "step" ? "step" : item.type },
        h("button", { class: "choice", "aria-current": String(item === selected), click: () => select(item) }, iconOf(item), h("span", {}, name), h("small", {}, summary(item))),
        h("div", { class: "moves" }, ...moves),
        h("button", { class: "quiet small", "aria-label": `Remove: ${name}`, click: () => remove(item) }, "×"),
        ...problems.filter(({ nodeId }) => nodeId === item.id).map((problem) => h("p", { class: problem.severity === "error" ? "problem error" : "problem muted" }, problem.message)),
      );
    }),
  );
}

function drawPalette() {
  const groups = Map.groupBy ? Map.groupBy(Object.values(types), ({ category }) => category) : new Map([["Actions", Object.values(types)]]);
  const choice = (type, name, svg, title, description, reason) =>
    h("li", {}, h("button", { class: "choice", "data-testid": `add-${name}`, disabled: Boolean(reason), click: () => add(name) }, icon(svg), h("span", {}, title), h("small", {}, reason ?? description)));
  $("#palette").replaceChildren(
    h("ul", { class: "plain" }, choice(null, "step", STEP_ICON, STEP.title, STEP.description)),
    ...[...groups].flatMap(([category, members]) => [
      h("h3", { class: "muted", style: "font-size:.85rem;margin:1rem 0 .4rem" }, category),
      h("ul", { class: "plain" }, ...members.map((type) => choice(type, type.name, type.icon, type.title, type.description, type.available ? null : (type.unavailableReason ?? "Not available.")))),
    ]),
  );
}

async function drawFlows() {
  const { data } = await call("/api/flows");
  const kinds = { single_shot: "Everything at once", client_paced: "Step by step" };
  $("#flows").replaceChildren(...data.map((one) => h("li", {}, h("button", { class: "choice text", "aria-current": String(one.id === flow?.id), click: () => open(one.id) }, h("span", {}, one.name), h("small", {}, kinds[one.kind])))));
  return data;
}

async function drawRuns() {
  const { data } = await call(`/api/flows/${flow.id}/runs`);
  const shown = data.slice(0, 5).map((run) => {
    const results = run.results.map((result) => h("p", {}, badge(result.status), " ", nameOf(result.nodeId), result.reason ? ` · ${result.reason}: ${result.message ?? ""}` : ""));
    return h("div", { class: "run" }, h("p", { class: "muted" }, `${run.userId || "Somebody"}, ${relative(run.openedAt * 1000)}`), ...results);
  });
  $("#runs").replaceChildren(...(shown.length ? shown : [h("p", { class: "muted" }, "Nobody has run this flow yet.")]));
}

function nameOf(nodeId) {
  const item = flow.items.find(({ id }) => id === nodeId);
  return item ? (typeOf(item)?.title ?? item.type) : "a removed node";
}

async function open(id) {
  flow = (await call(`/api/flows/${id}`)).data;
  selected = null;
  problems = [];
  history.replaceState(null, "", `?flow=${encodeURIComponent(id)}`);
  $("#flow-title").textContent = flow.name;
  $("#flow-name").value = flow.name;
  $("#flow-kind").value = flow.kind;
  $("#flow-agent").value = flow.agentId;
  $("#run").href = `/run/${encodeURIComponent(id)}`;
  $("#status").textContent = "";
  $("#form-title").textContent = "Settings";
  $("#form").replaceChildren(h("p", { class: "muted" }, "Choose an item of the flow to edit it."));
  drawItems();
  await Promise.all([drawFlows(), drawRuns()]);
}

async function save() {
  const { items } = flow;
  const body = { name: $("#flow-name").value, kind: $("#flow-kind").value, agentId: $("#flow-agent").value, items };
  try {
    ({ problems } = await call(`/api/flows/${flow.id}`, { method: "PUT", body }));
    drawItems();
    $("#flow-title").textContent = body.name;
    $("#status").textContent = "Saved";
    await drawFlows();
  } catch (error) {
    $("#status").textContent = `Not saved: ${error.message}`;
  }
}

async function create() {
  const body = { name: "New flow", kind: "single_shot", agentId: $("#flow-agent").value, items: [] };
  await open((await call("/api/flows", { method: "POST", body })).data.id);
  $("#flow-name").select();
}

await begin();
types = Object.fromEntries((await call("/api/node-types")).data.map((type) => [type.name, type]));
drawPalette();
const agents = (await call("/api/agents")).data;
$("#flow-agent").replaceChildren(...agents.map(({ id, name }) => h("option", { value: id }, name)));
for (const id of ["flow-name", "flow-kind", "flow-agent"]) $(`#${id}`).addEventListener("input", changed);
$("#save").addEventListener("click", save);
$("#new-flow").addEventListener("click", create);
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "s") {
    event.preventDefault();
    save();
  }
});
addEventListener("beforeunload", (event) => {
  if ($("#status").textContent === "Not saved yet") event.preventDefault();
});
const flows = await drawFlows();
const wanted = new URLSearchParams(location.search).get("flow");
const first = flows.find(({ id }) => id === wanted) ?? flows[0];
if (first) await open(first.id);
else await create();
for (const id of ["new-flow", "save"]) $(`#${id}`).disabled = false;
setInterval(() => drawRuns().catch(() => {}), 2000);
