// Questions in a dialog.

import { h } from "./dom.js";

/**
 * Ask, and give the value of the button that was pressed; "" for Escape.
 *
 * choices are [value, label, class]; the first one has the focus. more is shown below the text.
 */
export function ask(title, text, choices, more = null) {
  const buttons = choices.map(([value, label, style]) => h("button", { value, class: style, "data-choice": value }, label));
  const dialog = h(
    "dialog",
    { class: more ? "question wide" : "question", "aria-labelledby": "question-title", "aria-describedby": "question-text" },
    h("h2", { id: "question-title" }, title),
    h("p", { id: "question-text" }, text),
    more,
    h("form", { method: "dialog", class: "row" }, ...buttons),
  );
  document.body.append(dialog);
  dialog.showModal();
  buttons[0].focus();
  return new Promise((answered) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      answered(dialog.returnValue);
    }, { once: true });
  });
}
