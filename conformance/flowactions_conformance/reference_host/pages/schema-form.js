// A form made from a node type: JSON Schema, uiSchema, pickers and template variables.
// Understands what react-jsonschema-form does with the same schema: titles, descriptions, defaults, labelled
// choices (oneOf of const and title), arrays of objects, and fields that depend on another's value.

import { h } from "./dom.js";
import { picker } from "./picker.js";

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

/** Say what is wrong with a value, "" when nothing is. */
export function mistake(schema, value, required) {
  const empty = value === undefined || value === null || value === "";
  if (empty) return required ? "Fill this in." : "";
  if (schema.pattern && typeof value === "string" && !new RegExp(schema.pattern, "u").test(value)) return "This does not have the right form.";
  if (schema.maxLength && value.length > schema.maxLength) return `At most ${schema.maxLength} characters.`;
  return "";
}

/** A form that keeps `config` up to date, keys that it does not know included. */
export class SchemaForm {
  constructor(nodeType, config, onChange) {
    this.nodeType = nodeType;
    this.config = config;
    this.onChange = onChange;
    this.element = h("div", { class: "form" });
    this.draw();
  }

  draw() {
    const { configSchema, uiSchema: ui } = this.nodeType;
    const { properties, required } = resolved(configSchema, this.config);
    const names = ordered(Object.keys(properties), ui["ui:order"]).filter((name) => ui[name]?.["ui:widget"] !== "hidden");
    this.element.replaceChildren(...names.map((name) => this.field(name, properties[name], required.has(name))));
  }

  set(name, value, schema, required, error) {
    if (value === "" || value === undefined) delete this.config[name];
    else this.config[name] = value;
    if (error) error.textContent = mistake(schema, value, required);
    this.onChange();
    if (name in (this.nodeType.configSchema.dependencies ?? {})) {
      this.draw();
      this.element.querySelector(`#field-${name}`)?.focus();
    }
  }

  field(name, schema, required) {
    const ui = this.nodeType.uiSchema[name] ?? {};
    const id = `field-${name}`;
    const value = this.config[name] ?? schema.default;
    const help = h("p", { class: "help", id: `${id}-help` }, ui["ui:help"] ?? schema.description ?? "");
    const error = h("p", { class: "error", id: `${id}-error`, "aria-live": "polite" });
    const set = (changed) => this.set(name, changed, schema, required, error);
    const shared = { id, "aria-describedby": `${id}-help ${id}-error`, "aria-required": String(required), placeholder: ui["ui:placeholder"] };
    const label = h("label", { for: id, class: required ? "required" : "" }, schema.title ?? name);
    if (schema.type === "boolean") {
      const box = h("input", { ...shared, type: "checkbox", change: () => set(box.checked) });
      box.checked = Boolean(value);
      return h("div", { class: "field check" }, box, label, help);
    }
    if (schema.type === "array") return h("fieldset", { class: "field", id, style: "border:0;padding:0;margin-inline:0" }, h("legend", {}, h("strong", {}, schema.title ?? name)), this.entries(name, schema, value ?? []), help);
    const control = this.control(name, schema, ui, shared, value, set);
    const chips = ui["ui:options"]?.templates ? this.chips(control) : null;
    return h("div", { class: "field", "data-field": name }, label, control, chips, help, error);
  }

  control(name, schema, ui, shared, value, set) {
    if (schema.oneOf) {
      const select = h("select", { ...shared, change: () => set(select.value) }, ...schema.oneOf.map((one) => h("option", { value: one.const }, one.title)));
      select.value = value ?? "";
      return select;
    }
    if (this.nodeType.pickers[name]) return picker(this.nodeType.pickers[name], shared, value ?? "", set);
    const area = ui["ui:widget"] === "textarea";
    const type = ui["ui:widget"] === "password" ? "password" : "text";
    const input = h(area ? "textarea" : "input", { ...shared, ...(area ? { rows: ui["ui:options"]?.rows ?? 4 } : { type, autocomplete: "off" }), input: () => set(input.value) });
    input.value = value ?? "";
    if (schema.examples && !area) {
      const list = h("datalist", { id: `${shared.id}-list` }, ...schema.examples.map((one) => h("option", { value: one })));
      input.setAttribute("list", list.id);
      return h("div", {}, input, list);
    }
    return input;
  }

  chips(control) {
    const names = Object.entries(this.nodeType.templateVariables);
    const insert = (text) => {
      control.setRangeText(text, control.selectionStart, control.selectionEnd, "end");
      control.focus();
      control.dispatchEvent(new Event("input"));
    };
    return h("div", { class: "chips" }, ...names.map(([name, meaning]) => h("button", { type: "button", class: "small", title: meaning, click: () => insert(`{{${name}}}`) }, `{{${name}}}`)));
  }

  entries(name, schema, values) {
    const rows = values.map((value) => ({ ...value }));
    const list = h("div", { class: "entries" });
    const save = () => this.set(name, rows.length ? rows : undefined, schema, false);
    const fields = Object.entries(schema.items.properties);
    const draw = () => {
      list.replaceChildren(
        ...rows.map((row, index) => {
          const inputs = fields.map(([key, sub]) => {
            const label = `${sub.title ?? key} ${index + 1}`;
            const input = h("input", { "aria-label": label, placeholder: sub.title ?? key, id: `field-${name}-${index}-${key}`, input: () => { row[key] = input.value; save(); } });
            input.value = row[key] ?? "";
            return input;
          });
          const remove = h("button", { type: "button", class: "quiet", "aria-label": `Remove row ${index + 1}`, click: () => { rows.splice(index, 1); save(); draw(); } }, "×");
          return h("div", { class: "entry" }, ...inputs, remove);
        }),
        h("div", {}, h("button", { type: "button", class: "quiet small", id: `field-${name}-add`, click: () => { rows.push({}); save(); draw(); list.querySelector(".entry:last-of-type input")?.focus(); } }, "Add a row")),
      );
    };
    draw();
    return list;
  }
}
