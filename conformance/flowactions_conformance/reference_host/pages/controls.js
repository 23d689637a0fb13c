// The controls of a form, one for each kind of value. Each has its element and input; those of text can insert.

import { codeEditor } from "./code-editor.js";
import { h } from "./dom.js";
import { picker } from "./picker.js";
import { pieceAt } from "./places.js";
import { insertInto } from "./templates.js";

const OTHER = "\u0000other";

/** What a control is made of: the field's attributes, schema and uiSchema, its value, set(), and its node type. */
export function controlFor(field) {
  const { schema, ui, nodeType, name } = field;
  const widget = ui["ui:widget"];
  if (schema.type === "boolean") return checkbox(field);
  const choices = schema.oneOf ?? schema.enum?.map((value) => ({ const: value, title: String(value) }));
  if (choices) return select(field, choices);
  if (nodeType.pickers[name]) return picker(nodeType.pickers[name], field.attributes, field.value ?? "", field.set);
  if (["integer", "number"].includes(schema.type)) return number(field);
  if (ui["ui:options"]?.language === "json") return code(field);
  if (widget === "password") return secret(field);
  if (widget === "textarea") return area(field);
  return schema.examples?.length ? choiceOrOther(field) : line(field);
}

function text(input) {
  return { element: input, input, focus: () => input.focus(), insert: (inserted) => insertInto(input, inserted), goTo: (row, column) => goTo(input, row, column) };
}

/** Select what is wrong at a place of an input. */
export function goTo(input, row, column) {
  input.focus();
  input.setSelectionRange(...pieceAt(input.value, row, column));
}

function line({ attributes, ui, value, set }) {
  const input = h("input", { ...attributes, type: "text", autocomplete: "off", spellcheck: "false", placeholder: ui["ui:placeholder"], input: () => set(input.value) });
  input.value = value ?? "";
  return text(input);
}

function area({ attributes, ui, value, set }) {
  const input = h("textarea", { ...attributes, rows: ui["ui:options"]?.rows ?? 4, placeholder: ui["ui:placeholder"], input: () => set(input.value) });
  input.value = value ?? "";
  return text(input);
}

function code({ attributes, labelId, nodeType, ui, value, set }) {
  const { id, ...rest } = attributes;
  const names = ui["ui:options"].templates ? Object.keys(nodeType.templateVariables) : [];
  return codeEditor({ attributes: { ...rest, id, "aria-labelledby": labelId }, value: value ?? "", hint: ui["ui:placeholder"], rows: ui["ui:options"].rows ?? 4, names, set });
}

function number({ attributes, schema, value, set }) {
  const input = h("input", {
    ...attributes, type: "number", class: "short", min: schema.minimum, max: schema.maximum, step: schema.type === "integer" ? 1 : "any",
    input: () => set(input.value === "" && !input.validity.badInput ? undefined : input.validity.badInput ? NaN : Number(input.value)),
  });
  input.value = value ?? "";
  return { element: input, input, focus: () => input.focus() };
}

function checkbox({ attributes, value, set }) {
  const input = h("input", { ...attributes, type: "checkbox", change: () => set(input.checked) });
  input.checked = Boolean(value);
  return { element: input, input, focus: () => input.focus() };
}

function select({ attributes, value, set }, choices) {
  const known = choices.some((one) => one.const === value);
  const all = known || value === undefined ? choices : [...choices, { const: value, title: `${value} (not one of the choices)` }];
  const input = h("select", { ...attributes, change: () => set(all[input.selectedIndex].const) }, ...all.map((one) => h("option", { value: String(one.const) }, one.title ?? String(one.const))));
  input.selectedIndex = all.findIndex((one) => one.const === value);
  return { element: input, input, focus: () => input.focus() };
}

function secret(field) {
  const { input, goTo: _, ...rest } = line(field); // what is in it is shown by the button alone
  input.type = "password";
  input.setAttribute("autocomplete", "new-password");
  const show = (visible) => {
    input.type = visible ? "text" : "password";
    shown.setAttribute("aria-pressed", String(visible));
    shown.textContent = visible ? "Hide" : "Show";
    shown.setAttribute("aria-label", `${shown.textContent} ${field.title}`);
  };
  const shown = h("button", { type: "button", class: "quiet", "aria-pressed": "false", "aria-label": `Show ${field.title}`, click: () => show(input.type === "password") }, "Show");
  // Visible, so that the author can hand it to the receiver's developers: 24 bytes, as Standard Webhooks has them.
  const generated = h("button", { type: "button", class: "quiet", "aria-label": `Generate ${field.title}`, click: () => {
    input.value = `whsec_${btoa(String.fromCharCode(...crypto.getRandomValues(new Uint8Array(24))))}`;
    field.set(input.value);
    show(true);
  } }, "Generate");
  return { ...rest, input, element: h("div", { class: "beside" }, input, shown, generated) };
}

/** The usual values in a list, and a field for others. */
function choiceOrOther(field) {
  const { attributes, schema, value, set, title } = field;
  const listed = value === undefined || schema.examples.includes(value);
  const other = line({ ...field, attributes: { "aria-label": `${title}: other`, "aria-describedby": attributes["aria-describedby"], id: `${attributes.id}-other` } });
  other.input.classList.add("short");
  other.input.hidden = listed;
  const input = h("select", { ...attributes, change: () => {
    other.input.hidden = input.value !== OTHER;
    if (input.value !== OTHER) return set(input.value);
    other.input.focus();
    return set(other.input.value);
  } }, ...schema.examples.map((one) => h("option", { value: one }, one)), h("option", { value: OTHER }, "Other …"));
  input.value = listed ? (value ?? schema.examples[0]) : OTHER;
  return { element: h("div", { class: "beside start" }, input, other.input), input, focus: () => input.focus() };
}
