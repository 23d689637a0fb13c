// Variables as buttons that insert them at the caret.

import { h } from "./dom.js";

/** Insert text at the caret of an input, so that Undo takes it back. */
export function insertInto(input, text) {
  input.focus();
  if (document.execCommand("insertText", false, text)) return;
  input.setRangeText(text, input.selectionStart, input.selectionEnd, "end");
  input.dispatchEvent(new Event("input", { bubbles: true }));
}

/** A button for each variable; target() gives the control that it is inserted into. */
export function chips(variables, field, target) {
  const buttons = Object.entries(variables).map(([name, meaning]) =>
    h("button", {
      type: "button",
      class: "small",
      title: meaning,
      "aria-label": `{{${name}}}: insert into ${field}. ${meaning}.`,
      mousedown: (event) => event.preventDefault(), // the field keeps focus and caret
      click: () => target()?.insert(`{{${name}}}`),
    }, `{{${name}}}`));
  return h("div", { class: "chips", role: "group", "aria-label": `Variables for ${field}` }, h("span", { class: "help", "aria-hidden": "true" }, "Insert"), ...buttons);
}
