// A form made from a node type: JSON Schema, uiSchema, pickers and template variables.
// Understands what react-jsonschema-form does with the same schema: titles, descriptions, defaults, labelled
// choices (oneOf of const and title), arrays of objects, and fields that depend on another's value.

import { controlFor, goTo } from "./controls.js";
import { h, replaceKeepingFocus } from "./dom.js";
import { pieceAt } from "./places.js";
import { chips, insertInto } from "./templates.js";

const AROUND = 24; // characters that an excerpt shows on each side

/** Give the properties and required names that apply to a config: its own, and those of matching branches. */
export function resolved(schema, config) {
  const properties = { ...schema.properties };
  const required = new Set(schema.required ?? []);
  for (const [name, { oneOf = [] }] of Object.entries(schema.dependencies ?? {})) {
    const value = config[name] ?? properties[name]?.default;
    const branch = oneOf.find((one) => matches(one.properties?.[name], value));
    for (const [field, sub] of Object.entries(branch?.properties ?? {})) if (field !== name) properties[field] = sub;
    for (const field of branch?.required ?? []) required.add(field);
  }
  return { properties, required };
}

function matches(condition, value) {
  return condition?.const === value || condition?.enum?.includes(value);
}

function ordered(names, order = ["*"]) {
  const rest = names.filter((name) => !order.includes(name));
  return order.flatMap((name) => (name === "*" ? rest : names.includes(name) ? [name] : []));
}

/** Say what is wrong with a value by its schema, "" when nothing is: for types that have no check of their own. */
export function mistake(schema, value, required) {
  const empty = value === undefined || value === null || value === "";
  if (empty) return required ? "Fill this in." : "";
  if (["integer", "number"].includes(schema.type)) {
    if (!Number.isFinite(value) || (schema.type === "integer" && !Number.isInteger(value))) return schema.type === "integer" ? "A whole number is needed." : "A number is needed.";
    if (value < schema.minimum || value > schema.maximum) return `It must be ${bounds(schema)}.`;
  }
  if (typeof value !== "string") return "";
  if (schema.pattern && !new RegExp(schema.pattern, "u").test(value)) return "This does not have the right form.";
  const length = [...value].length;
  if (length > schema.maxLength) return `At most ${schema.maxLength} characters; these are ${length}.`;
  if (length < schema.minLength) return `At least ${schema.minLength} characters.`;
  return "";
}

function bounds({ minimum, maximum }) {
  if (minimum === undefined) return `at most ${maximum}`;
  return maximum === undefined ? `at least ${minimum}` : `from ${minimum} to ${maximum}`;
}

/** A form that keeps a config up to date, keys that it does not know included, and shows problems at their fields. */
export class SchemaForm {
  /**
   * changed(name) is called after each change. A new node is told nothing of a field before its author has written in it or left it,
   * unless all is set.
   */
  constructor(nodeType, config, { changed, all }) {
    this.nodeType = nodeType;
    this.config = config;
    this.changed = changed;
    this.all = all;
    this.left = new Set();
    this.problems = [];
    this.whole = h("div", { class: "problems", "aria-live": "polite" });
    this.fields = h("div", {});
    this.element = h("form", { class: "form", submit: (event) => event.preventDefault(), novalidate: true }, this.whole, this.fields);
    this.element.addEventListener("focusout", (event) => {
      const name = event.target.closest?.("[data-field]")?.dataset.field;
      if (!name || this.left.has(name)) return;
      this.left.add(name);
      afterPress(() => this.show(this.problems));
    });
    this.draw();
  }

  draw() {
    const { configSchema, uiSchema: ui } = this.nodeType;
    this.places = new Map(); // path → where its problems are shown
    this.resolved = resolved(configSchema, this.config);
    const { properties, required } = this.resolved;
    const names = ordered(Object.keys(properties), ui["ui:order"]).filter((name) => ui[name]?.["ui:widget"] !== "hidden");
    this.fields.replaceChildren(...names.map((name) => this.field(name, properties[name], required.has(name))));
    this.show(this.problems);
  }

  set(name, value) {
    this.left.add(name);
    if (value === "" || value === undefined) delete this.config[name];
    else this.config[name] = value;
    if (name in (this.nodeType.configSchema.dependencies ?? {})) {
      this.draw();
      this.places.get(name)?.control.focus();
    }
    this.changed(name);
  }

  /** Take what was typed into a picker and not chosen yet. */
  commit() {
    for (const { control } of this.places.values()) control.commit?.();
  }

  /** Tell everything from now on. */
  showAll() {
    this.all = true;
    this.show(this.problems);
  }

  /** Give the name that a picker shows for an id. */
  label(id) {
    for (const { control } of this.places.values()) if (control.label && control.input.dataset.id === id) return control.label(id);
    return id;
  }

  /** Show each problem at its field; what has no field here stands above the form. */
  show(problems) {
    this.problems = problems;
    const { properties, required } = this.resolved;
    const by = new Map([...this.places.keys()].map((key) => [key, []]));
    const whole = [];
    for (const problem of problems) {
      const key = [problem.path.join("/"), problem.path[0]].find((each) => by.has(each));
      (key === undefined ? whole : by.get(key)).push(problem);
    }
    for (const [name, schema] of Object.entries(properties)) {
      const message = by.get(name)?.length === 0 ? mistake(schema, this.config[name], required.has(name)) : "";
      if (message) by.get(name).push({ severity: "error", message });
    }
    replaceKeepingFocus(this.whole, whole.map((problem) => note(problem, [problem.path.length ? `${problem.path[0]}: ` : "", problem.message].join(""))));
    for (const [key, { error, control, name }] of this.places) {
      const told = this.all || this.left.has(name) ? by.get(key) : [];
      const invalid = told.some(({ severity }) => severity === "error");
      if (control.input.matches("input, select, textarea, [role=textbox]")) control.input.setAttribute("aria-invalid", String(invalid));
      control.mark?.(told.filter(({ line }) => line).map(({ line, column }) => [line, column]));
      replaceKeepingFocus(error, told.map((problem) => this.told(problem, control)));
    }
  }

  told(problem, control) {
    const { line, column } = problem;
    if (!line || !control.goTo) return note(problem, problem.message);
    const place = (text, style = "link") => h("button", { type: "button", class: style, click: () => control.goTo(line, column) }, text);
    if (control.input.tagName === "INPUT") return note(problem, problem.message, " ", place(excerpt(control.input.value, line, column), "link excerpt"));
    const words = `line ${line}, column ${column}`;
    const [before, ...after] = problem.message.split(words);
    if (after.length) return note(problem, before, place(words), after.join(words));
    return note(problem, place(`L${words.slice(1)}`), `: ${problem.message}`);
  }

  field(name, schema, required) {
    const ui = this.nodeType.uiSchema[name] ?? {};
    const id = `field-${name}`;
    const title = schema.title ?? name;
    const help = h("p", { class: "help", id: `${id}-help` }, ui["ui:help"] ?? schema.description ?? "");
    const error = h("div", { class: "problems", id: `${id}-error`, "aria-live": "polite" });
    if (schema.type === "array" && schema.items?.properties) return this.rows({ name, schema, ui, id, title, help, error });
    const attributes = { id, "aria-describedby": `${id}-help ${id}-error`, "aria-required": schema.type === "boolean" ? null : String(required) };
    const labelId = `${id}-label`;
    const value = this.config[name] ?? schema.default;
    const control = controlFor({ name, schema, ui, title, labelId, attributes: clean(attributes), value, nodeType: this.nodeType, set: (changed) => this.set(name, changed) });
    this.places.set(name, { error, control, name });
    const label = h("label", { for: id, id: labelId, class: required ? "required" : "", click: () => control.input.isContentEditable && control.focus() }, title);
    if (schema.type === "boolean") return h("div", { class: "field check", "data-field": name }, control.element, label, help, error);
    const inserts = ui["ui:options"]?.templates && control.insert ? chips(this.nodeType.templateVariables, title, () => control) : null;
    return h("div", { class: "field", "data-field": name }, label, control.element, inserts, help, error);
  }

  /** A list of objects, a row for each. */
  rows({ name, schema, ui, id, title, help, error }) {
    const rows = (this.config[name] ?? schema.default ?? []).map((value) => ({ ...value }));
    const list = h("div", { class: "entries" });
    const save = () => this.set(name, rows.length ? rows.map((row) => ({ ...row })) : undefined);
    const templated = Object.keys(schema.items.properties).filter((key) => ui.items?.[key]?.["ui:options"]?.templates);
    let last = null;
    const cell = (row, index, key, sub) => {
      const cellId = `${id}-${index}-${key}`;
      const label = `${sub.title ?? key} ${index + 1}`;
      const cellError = h("div", { class: "problems", id: `${cellId}-error`, "aria-live": "polite" });
      const input = h("input", { "aria-label": `${title}: ${label}`, "aria-describedby": `${cellId}-error`, autocomplete: "off", spellcheck: "false", placeholder: sub.title ?? key, id: cellId, input: () => { row[key] = input.value; save(); } });
      input.value = row[key] ?? "";
      if (templated.includes(key)) input.addEventListener("focus", () => { last = input; });
      this.places.set(`${name}/${index}/${key}`, { error: cellError, name, control: { input, focus: () => input.focus(), goTo: (...place) => goTo(input, ...place) } });
      return h("div", {}, input, cellError);
    };
    const redraw = () => {
      for (const key of [...this.places.keys()]) if (key.startsWith(`${name}/`)) this.places.delete(key);
      last = null;
      list.replaceChildren(
        ...rows.map((row, index) => {
          const cells = Object.entries(schema.items.properties).map(([key, sub]) => cell(row, index, key, sub));
          const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove ${title} row ${index + 1}`, click: () => { rows.splice(index, 1); redraw(); save(); add.focus(); } }, "×");
          return h("div", { class: "entry" }, ...cells, remove);
        }),
      );
      inserts.hidden = !rows.length || !templated.length;
      this.show(this.problems);
    };
    const inserts = chips(this.nodeType.templateVariables, title, () => {
      const input = last ?? list.querySelector(`[id$="-${templated[0]}"]`);
      return input && { insert: (text) => insertInto(input, text) };
    });
    const add = h("button", { type: "button", class: "quiet small", id: `${id}-add`, click: () => { rows.push({}); redraw(); list.querySelector(".entry:last-of-type input")?.focus(); } }, `Add ${(ui.items?.["ui:title"] ?? "row").toLowerCase()}`);
    this.places.set(name, { error, name, control: { input: list, focus: () => add.focus() } });
    queueMicrotask(redraw);
    return h("fieldset", { class: "field", id, "data-field": name }, h("legend", {}, title), list, h("div", { class: "row" }, add, inserts), help, error);
  }
}

let pressed = false;
addEventListener("pointerdown", () => { pressed = true; }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = false; }, true);

/** Do something that moves what is on the page, but not while a button is pressed: the click would miss it. */
function afterPress(change) {
  const later = () => setTimeout(change, 50);
  if (pressed) addEventListener("pointerup", later, { once: true });
  else later();
}

/** Give what stands around a place in an input, which can mark nothing itself, with what is wrong marked. */
function excerpt(text, line, column) {
  const [from, to] = pieceAt(text, line, column);
  const before = text.slice(Math.max(0, from - AROUND), from);
  const after = text.slice(to, to + AROUND);
  const piece = to - from > 2 * AROUND ? `${text.slice(from, from + 2 * AROUND)}…` : text.slice(from, to);
  return h("code", {}, before.length < from ? "…" : "", before, h("mark", {}, piece), after, to + after.length < text.length ? "…" : "");
}

function note({ severity }, ...content) {
  return h("p", { class: severity === "error" ? "problem error" : "problem warning" }, ...content);
}

function clean(attributes) {
  return Object.fromEntries(Object.entries(attributes).filter(([, value]) => value != null));
}
