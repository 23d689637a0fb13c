// A save over what somebody else has saved: both are shown, and the author decides.

import { ask } from "./dialog.js";
import { h } from "./dom.js";
import { nameOf, summary } from "./flow-view.js";
import { lookUp } from "./picker.js";
import { resolved } from "./schema-form.js";

const same = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Give the fields of an item as [name, title, value, show]: show(value) gives it in words or as an element, and no secret. */
function fieldsOf(item, types) {
  if (item.kind === "step") return [["title", "Title", item.title, words], ["text", "Text", item.text, words]];
  const type = types[item.type];
  const { properties } = type ? resolved(type.configSchema, item.config) : { properties: {} };
  const config = Object.entries(item.config).map(([name, value]) => {
    const schema = properties[name] ?? {};
    const secret = type?.secretFields?.includes(name) || type?.uiSchema[name]?.["ui:widget"] === "password";
    const route = value && type?.pickers[name];
    const show = () => (secret ? "(a secret, which is not shown)" : route ? named(route, value) : words(value, schema));
    return [name, schema.title ?? name, value, show];
  });
  return [["", "Name", nameOf(item, types), words], ...config];
}

/** Show what was chosen from a list by its name, once that is known; until then, and without one, by its id. */
function named(route, id) {
  const shown = h("span", {}, id);
  lookUp(route, id).then((found) => { if (found && found.label !== id) shown.textContent = `${found.label} (ID ${id})`; }).catch(() => {});
  return shown;
}

function words(value, schema = {}) {
  if (value === undefined || value === null || value === "") return "";
  if (typeof value === "boolean") return value ? "Yes" : "No";
  const choice = schema.oneOf?.find((one) => one.const === value);
  if (choice) return choice.title;
  if (Array.isArray(value)) return value.map((each) => (each && typeof each === "object" ? Object.values(each).join(": ") : String(each))).join("\n");
  return typeof value === "object" ? JSON.stringify(value, null, 2) : String(value);
}

/** Compare two versions of an item, and give its differing fields as [title, mine, theirs]. */
function fieldsThatDiffer(mine, theirs, types) {
  const [left, right] = [mine, theirs].map((item) => new Map(fieldsOf(item, types).map(([name, title, value, show]) => [name, { title, value, show }])));
  const side = (field) => field?.show(field.value) ?? "";
  return [...new Set([...left.keys(), ...right.keys()])]
    .map((name) => [left.get(name), right.get(name)])
    .filter(([my, their]) => !same(my?.value ?? "", their?.value ?? ""))
    .map(([my, their]) => [(my ?? their).title, side(my), side(their)]);
}

/** Find what differs. base is what both began with, null for a flow that was new; each is {name, kind, agentId, items}. */
export function differences(base, mine, theirs, { types, labels }) {
  const found = [];
  const note = (title, [before, left, right], shown) => {
    if (same(left, right)) return;
    const by = !base ? "" : same(right, before) ? "you" : same(left, before) ? "them" : "both";
    found.push({ title, by, shown: shown ?? [["", labels(left), labels(right)]] });
  };
  for (const [name, title] of [["name", "Name of the flow"], ["kind", "Kind"], ["agentId", "Agent"]]) note(title, [base?.[name], mine[name], theirs[name]]);
  const [before, left, right] = [base, mine, theirs].map((body) => new Map((body?.items ?? []).map((item) => [item.id, item])));
  for (const id of new Set([...right.keys(), ...left.keys()])) {
    const [my, their] = [left.get(id), right.get(id)];
    const fields = my && their && fieldsThatDiffer(my, their, types);
    if (fields?.length === 0) continue;
    const present = (item) => (item ? `In the flow. ${summary(item, types)}` : "Not in the flow");
    note(nameOf(my ?? their, types), [before.get(id), my, their], fields ?? [["", present(my), present(their)]]);
  }
  const order = (body, others) => body?.items.map(({ id }) => id).filter((id) => others.has(id));
  const list = (body, others) => body.items.filter(({ id }) => others.has(id)).map((item, index) => `${index + 1}. ${nameOf(item, types)}`).join("\n");
  const common = new Set([...left.keys()].filter((id) => right.has(id)));
  note("Order", [order(base, common), order(mine, common), order(theirs, common)], [["", list(mine, common), list(theirs, common)]]);
  return found;
}

function drawDifference({ title, by, shown }, who) {
  const side = (label, text) => h("div", {}, h("p", { class: "help" }, label), h("pre", {}, text || "(empty)"));
  return h(
    "section",
    {},
    h("h3", {}, title, by ? h("small", {}, { you: "changed by you", them: `changed by ${who}`, both: "changed by both" }[by]) : null),
    ...shown.flatMap(([name, mine, theirs]) => [name ? h("h4", {}, name) : null, h("div", { class: "sides" }, side("Yours", mine), side("Saved now", theirs))]).filter(Boolean),
  );
}

/**
 * Show both versions, and ask: "theirs" to go on with the saved one, "mine" to replace it, "" for neither.
 *
 * savedBy is {userId, userName} or null, me who is signed in.
 */
export function askAboutConflict(found, savedBy, me) {
  const who = !savedBy ? "somebody else" : savedBy.userId === me.userId ? "you, in another tab" : savedBy.userName;
  const by = savedBy?.userId === me.userId ? "You have saved this flow in another tab" : `${savedBy?.userName ?? "Somebody else"} has saved this flow`;
  return ask(
    "Not saved: the flow was changed",
    `${by} since you opened it here. “Take theirs” drops your changes; Undo brings them back. “Keep mine” replaces what is saved now. This is what differs:`,
    [["", "Cancel", "quiet"], ["theirs", "Take theirs"], ["mine", "Keep mine", "danger"]],
    h("div", { class: "differences", role: "region", "aria-label": "What differs", tabindex: "0" }, ...found.map((each) => drawDifference(each, who))),
  );
}
