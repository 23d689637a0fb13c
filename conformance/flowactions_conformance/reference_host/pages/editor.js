// The flow editor: which flow is open, what of it is saved, and every way out of it.

import { begin, call } from "./api.js";
import { askAboutConflict, differences } from "./conflict.js";
import { ask } from "./dialog.js";
import { $, h, replaceKeepingFocus } from "./dom.js";
import { check, draftOf } from "./drafts.js";
import { STEP, drawItems, drawPalette, nameOf } from "./flow-view.js";
import { NodePanel } from "./node-panel.js";
import { drawResult, drawRun, readRuns, whose } from "./runs.js";
import { Settings } from "./settings.js";

const RUNS_MS = 2000;
const KINDS = { single_shot: "Everything at once", client_paced: "Step by step" };

let types = {};
let agents = [];
let me = null;
let flow = null; // as it is edited
let saved = null; // as the server has it: {body, text, items: id → text, errors, etag}; without an ETag, the flow is not there yet
let undos = []; // what can be taken back until the next save: {text, undo}
let selected = null;
let panel = null;
let found = new Map(); // item id → what is wrong with it
let last = new Map(); // item id → what the newest run did there
let dropped = false; // whether the author has given the changes up
const settings = new Settings($("#settings"), () => {
  panel?.commit();
  if (selected) focusItem(selected);
});

const edited = () => ({ name: $("#flow-name").value.trim(), kind: $("#flow-kind").value, agentId: $("#flow-agent").value, items: flow.items });
const hasChanges = () => flow !== null && !dropped && JSON.stringify(edited()) !== saved.text;
const isAction = (item) => item.kind === "action" && types[item.type];

function remember(body, etag, problems = []) {
  const items = new Map(etag ? body.items.map((item) => [item.id, JSON.stringify(item)]) : []);
  saved = { body: structuredClone(body), text: JSON.stringify(body), items, etag, errors: problems.filter(({ severity }) => severity === "error") };
  undos = [];
  drawUndo();
}

function say(text, bad = false) {
  // Where the form is over the flow, it is said there.
  for (const line of [$("#status"), $("#status-here")]) {
    line.textContent = text;
    line.classList.toggle("bad", bad);
  }
}

function changed(note = "") {
  dropped = false;
  say([note, hasChanges() ? "Not saved yet" : ""].filter(Boolean).join(" "));
  draw();
}

function draw() {
  $("#name-error").textContent = $("#flow-name").value.trim() ? "" : "Give the flow a name.";
  drawItems({
    items: flow.items,
    types,
    selected,
    problems: (item) => found.get(item.id) ?? [],
    result: (item, name) => last.has(item.id) ? drawResult(last.get(item.id), name) : null,
    unsaved: (item) => saved.items.get(item.id) !== JSON.stringify(item),
    select,
    move,
    copy,
    remove,
  });
}

function drawUndo() {
  const last = undos.at(-1);
  $("#undo-text").textContent = last?.text ?? "";
  $("#undo").hidden = !last;
}

function offerUndo(text, undo) {
  undos.push({ text, undo });
  drawUndo();
}

function undoLast() {
  undos.pop()?.undo();
  drawUndo();
}

/** Put a version into the form and the list, without a word about what is saved. */
function put({ name, kind, agentId, items }) {
  deselect();
  flow.items = items;
  $("#items").replaceChildren(); // its buttons are for the items before
  $("#flow-name").value = name;
  $("#flow-kind").value = kind;
  $("#flow-agent").value = agentId;
}

const focusItem = (item) => $(`[data-item-id="${CSS.escape(item.id)}"] .choice`)?.focus();

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
  return settings.show(type.title, h("div", {}, nameField(item, type), panel.form.element), panel.tried);
}

/** The name of an action, for those who edit the flow. */
function nameField(item, type) {
  const input = h("input", { id: "item-name", maxlength: 200, placeholder: type.title, autocomplete: "off", "aria-describedby": "item-name-help", input: () => {
    if (input.value.trim()) item.name = input.value.trim();
    else delete item.name;
    changed();
  } });
  input.value = item.name ?? "";
  return h("div", { class: "field" }, h("label", { for: input.id }, "Name in this flow"), input, h("p", { class: "help", id: "item-name-help" }, "For you and your colleagues. It is not sent."));
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

function copy(item) {
  panel?.commit();
  const made = { ...structuredClone(item), id: crypto.randomUUID() };
  made[item.kind === "step" ? "title" : "name"] = `Copy of ${nameOf(item, types)}`.slice(0, 200);
  flow.items.splice(flow.items.indexOf(item) + 1, 0, made);
  select(made);
  changed();
  focusItem(made);
}

function move(item, by) {
  const from = flow.items.indexOf(item);
  flow.items.splice(from, 1);
  flow.items.splice(from + by, 0, item);
  changed(`${nameOf(item, types)} is ${from + by + 1} of ${flow.items.length}.`);
}

function remove(item) {
  const at = flow.items.indexOf(item);
  flow.items.splice(at, 1);
  if (selected === item) deselect();
  offerUndo(`${nameOf(item, types)} is removed.`, () => {
    flow.items.splice(at, 0, item);
    changed(`${nameOf(item, types)} is back.`);
    focusItem(item);
  });
  changed();
  const next = flow.items[at] ?? flow.items[at - 1];
  if (next) focusItem(next);
  else $("#undo").focus();
}

function deselect() {
  panel?.close();
  panel = null;
  selected = null;
  settings.empty();
}

async function drawFlows() {
  const { data } = await call("/api/flows");
  if (flow && !saved.etag) data.push({ id: flow.id, name: "New flow, not saved", kind: $("#flow-kind").value });
  $("#flows").replaceChildren(...data.map((one) => h("li", {}, h("button", { class: "choice text", "aria-current": String(one.id === flow?.id), click: () => { if (one.id !== flow?.id || saved.etag) go(() => open(one.id)); } }, h("span", {}, one.name), h("small", {}, KINDS[one.kind])))));
  return data;
}

async function drawRuns() {
  if (!flow || !saved.etag || document.hidden) return;
  const { id } = flow;
  const runs = await readRuns(id);
  if (flow?.id !== id) return;
  $("#no-runs").hidden = runs.length > 0;
  showLast(runs[0]);
  replaceKeepingFocus($("#runs"), runs.map((run) => drawRun(run, types, false)));
}

/** Show beside each item what the newest run did there. */
function showLast(run) {
  replaceKeepingFocus($("#last-run"), run ? [h("span", {}, `Last run: ${whose(run)}`)] : []);
  last = new Map(run?.walk.map((each) => [each.item.id, each]));
  draw();
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
  const { data, etag } = await call(`/api/flows/${encodeURIComponent(id)}`);
  show(data, etag);
  await drawFlows();
}

/** Begin to edit a version that the server has; without an ETag, a flow that is made when it is saved. */
function show(body, etag) {
  flow = body;
  dropped = false;
  found = new Map();
  put(body);
  $("#runs").replaceChildren();
  $("#no-runs").hidden = Boolean(etag);
  document.body.dataset.flow = "open";
  remember(edited(), etag);
  showSaved();
  say(etag ? "" : "This flow is made when you save it.");
  showLast(null);
  checkItems().catch(() => {});
  drawRuns().catch(() => {});
}

/** Show what depends on whether the flow is there, and on its saved name. */
function showSaved() {
  const { etag, body } = saved;
  history.replaceState(null, "", etag ? `?flow=${encodeURIComponent(flow.id)}` : location.pathname);
  $("#flow-title").textContent = body.name;
  $("#run").href = `/run/${encodeURIComponent(flow.id)}?author`;
  $("#delete-flow").textContent = etag ? "Delete" : "Discard";
}

let saving = Promise.resolve();

/** Save, and say so; what cannot run is said to be a draft. Gives whether it was saved. Saves follow each other. */
function save() {
  saving = saving.catch(() => {}).then(() => saveOver(saved.etag));
  return saving;
}

/** Save over the version that has this ETag; null: over none. */
async function saveOver(etag) {
  panel?.commit();
  panel?.showAll();
  const body = structuredClone(edited());
  if (!body.name) {
    say("Not saved: give the flow a name.", true);
    return false;
  }
  try {
    const headers = etag ? { "if-match": etag } : { "if-none-match": "*" };
    taken(body, await call(`/api/flows/${flow.id}`, { method: "PUT", body, headers }));
  } catch (error) {
    if (error.status === 412 && error.extra?.flow) return saveOverOthers(body, error);
    if (error.status === 404) return saveAgain();
    say(`Not saved: ${error.message}`, true);
    return false;
  }
  await drawFlows().catch(() => {});
  return true;
}

/** Take what the server says of the version that it has stored. */
function taken(body, { problems, etag }) {
  remember(body, etag, problems);
  for (const { id } of body.items) found.set(id, problems.filter(({ nodeId }) => nodeId === id));
  panel?.saved(found.get(panel.item.id) ?? []);
  showSaved();
  if (hasChanges()) say("Not saved yet");
  else if (saved.errors.length) say(`Saved as a draft. ${wontRun()}`, true);
  else say("Saved");
  draw();
}

/** Somebody else has saved the flow: show both versions, and do what the author decides. Gives whether it is saved then. */
async function saveOverOthers(mine, { extra, etag }) {
  const theirs = extra.flow;
  const labels = (value) => KINDS[value] ?? agents.find(({ id }) => id === value)?.name ?? value;
  const differing = differences(saved.etag ? saved.body : null, mine, theirs, { types, labels });
  // The answer to a save of the same may have been lost on its way.
  if (!differing.length) return saveOver(etag);
  const answer = await askAboutConflict(differing, extra.savedBy, me);
  if (answer === "mine") return saveOver(etag);
  if (answer === "theirs") {
    show(theirs, etag);
    say("This is the saved version.");
    offerUndo("Your changes are not in it.", () => {
      put(mine);
      changed("Your version is back.");
    });
    await drawFlows();
    return false;
  }
  say("Not saved: the flow was changed meanwhile. Save again to compare.", true);
  return false;
}

async function saveAgain() {
  const answer = await ask("Not saved: the flow was deleted", "Somebody has deleted this flow since you opened it here. You can make it again from what you see; its runs stay deleted.", [["", "Cancel", "quiet"], ["again", "Make it again"]]);
  if (answer === "again") return saveOver(null);
  say("Not saved: the flow was deleted.", true);
  return false;
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

/** Begin a flow, which the first save makes: of two that are begun at once, none replaces the other. */
async function create() {
  show({ id: crypto.randomUUID(), name: "New flow", kind: "single_shot", agentId: $("#flow-agent").value, items: [] }, null);
  await drawFlows();
  $("#flow-name").select();
}

async function removeFlow() {
  if (!saved.etag) return go(leaveFlow);
  const name = $("#flow-title").textContent;
  const answer = await ask(`Delete “${name}”?`, "Runs that are under way end, and webhooks of it that still wait are not sent. This cannot be undone.", [["", "Keep it", "quiet"], ["delete", "Delete the flow", "danger"]]);
  if (answer !== "delete") return;
  try {
    await call(`/api/flows/${flow.id}`, { method: "DELETE", headers: { "if-match": saved.etag } });
  } catch (error) {
    if (error.status !== 404) return say(`Not deleted: ${error.message}${error.status === 412 ? " Open it again to see what it is now." : ""}`, true);
  }
  return leaveFlow();
}

function leaveFlow() {
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
  if (!saved.etag) {
    event.preventDefault();
    return say("Save the flow first: then it can run.", true);
  }
  const dirty = hasChanges();
  if (!dirty && !saved.errors.length) return;
  event.preventDefault();
  const { href } = $("#run");
  const note = saved.errors.length ? ` In the saved version, ${wontRun()}` : "";
  const answer = dirty
    ? await ask("Run the saved version?", `Run takes the flow as it was saved; your changes since then are not in it.${note}`, [["save", "Save and run"], ["run", "Run the saved version", "quiet"], ["", "Cancel", "quiet"]])
    : await ask("Run it anyway?", wontRun(), [["run", "Run"], ["", "Cancel", "quiet"]]);
  if (answer === "run" || (answer === "save" && (await save()))) window.open(href, "_blank", "noopener");
}

me = await begin({ hasChanges, mayLeave });
types = Object.fromEntries((await call("/api/node-types")).data.map((type) => [type.name, type]));
agents = (await call("/api/agents")).data;
$("#flow-agent").replaceChildren(...agents.map(({ id, name }) => h("option", { value: id }, name)));
for (const id of ["flow-name", "flow-kind", "flow-agent"]) $(`#${id}`).addEventListener("input", () => changed());
for (const id of ["save", "save-here"]) $(`#${id}`).addEventListener("click", save);
$("#run").addEventListener("click", run);
$("#undo").addEventListener("click", undoLast);
$("#new-flow").addEventListener("click", () => go(create));
$("#delete-flow").addEventListener("click", removeFlow);
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "s" && flow) {
    event.preventDefault();
    save();
  }
  // In a text, Ctrl+Z takes back what was typed.
  const writes = event.target.closest("input, textarea, select, [contenteditable=true]");
  if ((event.ctrlKey || event.metaKey) && event.key === "z" && !writes && undos.length && !document.querySelector("dialog:modal")) {
    event.preventDefault();
    undoLast();
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
