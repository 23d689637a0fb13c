// The flow editor: which flow is open, what of it is saved, and every way out of it.

import { begin, call } from "./api.js";
import { ask } from "./dialog.js";
import { $, h } from "./dom.js";
import { check, draftOf } from "./drafts.js";
import { STEP, drawItems, drawPalette, nameOf, replaceKeepingFocus } from "./flow-view.js";
import { NodePanel } from "./node-panel.js";
import { drawRun, readRuns } from "./runs.js";
import { Settings } from "./settings.js";

const RUNS_MS = 2000;
const KINDS = { single_shot: "Everything at once", client_paced: "Step by step" };

let types = {};
let flow = null; // as it is edited
let saved = null; // as the server has it: {text, items: id → text, errors}
let selected = null;
let panel = null;
let found = new Map(); // item id → what is wrong with it
let dropped = false; // whether the author has given the changes up
const settings = new Settings($("#settings"), () => {
  panel?.commit();
  if (selected) $(`[data-item-id="${CSS.escape(selected.id)}"] .choice`)?.focus();
});

const edited = () => ({ name: $("#flow-name").value.trim(), kind: $("#flow-kind").value, agentId: $("#flow-agent").value, items: flow.items });
const hasChanges = () => flow !== null && !dropped && JSON.stringify(edited()) !== saved.text;
const isAction = (item) => item.kind === "action" && types[item.type];

function remember(body, problems) {
  const items = new Map(body.items.map((item) => [item.id, JSON.stringify(item)]));
  saved = { text: JSON.stringify(body), items, errors: problems.filter(({ severity }) => severity === "error") };
}

function say(text, bad = false) {
  // Where the form is over the flow, it is said there.
  for (const line of [$("#status"), $("#status-here")]) {
    line.textContent = text;
    line.classList.toggle("bad", bad);
  }
}

function changed() {
  dropped = false;
  say(hasChanges() ? "Not saved yet" : "");
  draw();
}

function draw() {
  $("#name-error").textContent = $("#flow-name").value.trim() ? "" : "Give the flow a name.";
  drawItems({
    items: flow.items,
    types,
    selected,
    problems: (item) => found.get(item.id) ?? [],
    unsaved: (item) => saved.items.get(item.id) !== JSON.stringify(item),
    select,
    move,
    remove,
  });
}

function select(item, fresh = false) {
  panel?.commit();
  panel?.close();
  panel = null;
  selected = item;
  draw();
  if (item.kind === "step") return settings.show(STEP.title, h("div", { class: "form" }, textField(item, "title", "Title"), textField(item, "text", "Text", true)));
  const type = types[item.type];
  if (!type) return settings.show(item.type, h("p", { class: "muted" }, `No installed plugin offers “${item.type}”.`));
  panel = new NodePanel(item, type, {
    agentId: () => $("#flow-agent").value,
    flowId: flow.id,
    fresh,
    changed,
    found: (problems) => {
      // Of what was just added, the author knows that it is empty.
      found.set(item.id, panel?.form.all === false && !saved.items.has(item.id) ? [] : problems);
      draw();
    },
  });
  return settings.show(type.title, panel.element);
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
  if (!flow) return;
  const id = crypto.randomUUID();
  const item = type === "step" ? { id, kind: "step", title: "New step", text: "" } : { id, kind: "action", type, config: defaults(types[type].configSchema) };
  flow.items.push(item);
  select(item, true);
  changed();
  settings.focus();
}

function move(item, by) {
  const from = flow.items.indexOf(item);
  flow.items.splice(from, 1);
  flow.items.splice(from + by, 0, item);
  changed();
}

function remove(item) {
  flow.items = flow.items.filter((other) => other !== item);
  if (selected === item) deselect();
  changed();
  $("#items .choice")?.focus();
}

function deselect() {
  panel?.close();
  panel = null;
  selected = null;
  settings.empty();
}

async function drawFlows() {
  const { data } = await call("/api/flows");
  $("#flows").replaceChildren(...data.map((one) => h("li", {}, h("button", { class: "choice text", "aria-current": String(one.id === flow?.id), click: () => go(() => open(one.id)) }, h("span", {}, one.name), h("small", {}, KINDS[one.kind])))));
  return data;
}

async function drawRuns() {
  if (!flow || document.hidden) return;
  const { id } = flow;
  const runs = await readRuns(id);
  if (flow?.id !== id) return;
  const named = (nodeId) => {
    const item = flow.items.find((one) => one.id === nodeId);
    return item ? nameOf(item, types) : "a removed node";
  };
  $("#no-runs").hidden = runs.length > 0;
  replaceKeepingFocus($("#runs"), runs.map((run) => drawRun(run, named)));
}

/** Check the saved nodes, so that each says in the list what keeps it from running. */
async function checkItems() {
  const { id } = flow;
  for (const item of flow.items.filter(isAction)) {
    const problems = await check(draftOf($("#flow-agent").value, item));
    if (flow?.id !== id) return;
    if (!found.has(item.id)) found.set(item.id, problems);
    saved.errors.push(...problems.filter(({ severity }) => severity === "error").map((problem) => ({ ...problem, nodeId: item.id })));
  }
  draw();
}

async function open(id) {
  const { data } = await call(`/api/flows/${encodeURIComponent(id)}`);
  deselect();
  flow = data;
  dropped = false;
  found = new Map();
  history.replaceState(null, "", `?flow=${encodeURIComponent(id)}`);
  $("#flow-title").textContent = flow.name;
  $("#flow-name").value = flow.name;
  $("#flow-kind").value = flow.kind;
  $("#flow-agent").value = flow.agentId;
  $("#run").href = `/run/${encodeURIComponent(id)}`;
  for (const list of ["#items", "#runs"]) $(list).replaceChildren();
  document.body.dataset.flow = "open";
  remember(edited(), []);
  say("");
  draw();
  checkItems().catch(() => {});
  drawRuns().catch(() => {});
  await drawFlows();
}

/** Save, and say so; what cannot run is said to be a draft. Gives whether it was saved. */
async function save() {
  panel?.commit();
  panel?.showAll();
  const body = structuredClone(edited());
  try {
    const { problems } = await call(`/api/flows/${flow.id}`, { method: "PUT", body });
    remember(body, problems);
    for (const { id } of body.items) found.set(id, problems.filter(({ nodeId }) => nodeId === id));
    panel?.saved(found.get(panel.item.id) ?? []);
    $("#flow-title").textContent = body.name;
    if (hasChanges()) say("Not saved yet");
    else if (saved.errors.length) say(`Saved as a draft. ${wontRun()}`, true);
    else say("Saved");
    draw();
    await drawFlows();
    return true;
  } catch (error) {
    say(`Not saved: ${error.message}`, true);
    return false;
  }
}

/** Say which actions of the saved flow do not run, and why. */
function wontRun() {
  const ids = [...new Set(saved.errors.map(({ nodeId }) => nodeId))];
  const [first] = saved.errors;
  const more = ids.length > 1 ? ` ${ids.length - 1} more will not run either.` : "";
  return `${nameOf(flow.items.find(({ id }) => id === first.nodeId) ?? { kind: "step", title: "A removed action" }, types)} will not run: ${first.message}${more}`;
}

/** Ask what to do about changes; gives whether to go on. */
async function mayLeave() {
  panel?.commit();
  if (!hasChanges()) return true;
  const broken = flow.items.find(({ id }) => found.get(id)?.some(({ severity }) => severity === "error"));
  const note = broken ? ` As it is, ${nameOf(broken, types)} will not run.` : "";
  const answer = await ask("Save your changes?", `“${$("#flow-name").value}” has changes that are not saved.${note}`, [["save", "Save"], ["drop", "Do not save", "danger"], ["", "Stay here", "quiet"]]);
  if (answer === "save") return save();
  if (answer !== "drop") return false;
  dropped = true;
  return true;
}

async function go(elsewhere) {
  if (!(await mayLeave())) return;
  try {
    await elsewhere();
  } catch (error) {
    dropped = false;
    say(error.message, true);
  }
}

async function create() {
  const body = { name: "New flow", kind: "single_shot", agentId: $("#flow-agent").value, items: [] };
  await open((await call("/api/flows", { method: "POST", body })).data.id);
  $("#flow-name").select();
}

async function removeFlow() {
  const name = $("#flow-title").textContent;
  const answer = await ask(`Delete “${name}”?`, "Runs that are under way end, and webhooks of it that still wait are not sent. This cannot be undone.", [["", "Keep it", "quiet"], ["delete", "Delete the flow", "danger"]]);
  if (answer !== "delete") return;
  try {
    await call(`/api/flows/${flow.id}`, { method: "DELETE" });
  } catch (error) {
    return say(`Not deleted: ${error.message}`, true);
  }
  flow = null;
  return openFirst();
}

/** Open a flow of the list; without any, say so. */
async function openFirst(wanted) {
  const flows = await drawFlows();
  const first = flows.find(({ id }) => id === wanted) ?? flows[0];
  if (first) return open(first.id);
  deselect();
  document.body.dataset.flow = "none";
  history.replaceState(null, "", location.pathname);
  return $("#new-flow").focus();
}

/** The saved version runs, which is said where it is not what one sees. */
async function run(event) {
  panel?.commit();
  const dirty = hasChanges();
  if (!dirty && !saved.errors.length) return;
  event.preventDefault();
  const { href } = $("#run");
  const note = saved.errors.length ? ` In the saved version, ${wontRun()}` : "";
  const answer = dirty
    ? await ask("Run the saved version?", `Run takes the flow as it was saved; your changes since then are not in it.${note}`, [["save", "Save and run"], ["run", "Run the saved version", "quiet"], ["", "Cancel", "quiet"]])
    : await ask("Run it all the same?", wontRun(), [["run", "Run"], ["", "Cancel", "quiet"]]);
  if (answer === "run" || (answer === "save" && (await save()))) window.open(href, "_blank", "noopener");
}

await begin({ hasChanges, mayLeave });
types = Object.fromEntries((await call("/api/node-types")).data.map((type) => [type.name, type]));
const agents = (await call("/api/agents")).data;
$("#flow-agent").replaceChildren(...agents.map(({ id, name }) => h("option", { value: id }, name)));
for (const id of ["flow-name", "flow-kind", "flow-agent"]) $(`#${id}`).addEventListener("input", changed);
for (const id of ["save", "save-here"]) $(`#${id}`).addEventListener("click", save);
$("#run").addEventListener("click", run);
$("#new-flow").addEventListener("click", () => go(create));
$("#delete-flow").addEventListener("click", removeFlow);
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "s" && flow) {
    event.preventDefault();
    save();
  }
});
// Links to other pages; the browser itself asks on reload, back and close.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  const here = !link || link.target === "_blank" || link.hash || event.ctrlKey || event.metaKey || event.shiftKey;
  if (here || !hasChanges()) return;
  event.preventDefault();
  go(() => location.assign(link.href));
});
addEventListener("beforeunload", (event) => {
  panel?.commit();
  if (hasChanges()) event.preventDefault();
});
await openFirst(new URLSearchParams(location.search).get("flow"));
drawPalette(types, add);
for (const id of ["new-flow", "save"]) $(`#${id}`).disabled = false;
setInterval(() => drawRuns().catch(() => {}), RUNS_MS);
