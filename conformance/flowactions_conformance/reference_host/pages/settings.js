// The panel of the selected item, and what is shown below the flow with it: over the flow where there is no room.

import { h } from "./dom.js";

const NARROW = matchMedia("(max-width: 60rem)");

export class Settings {
  /** closed is called when its author has closed it over the flow. */
  constructor(dialog, closed) {
    this.dialog = dialog;
    this.title = dialog.querySelector("#form-title");
    this.content = dialog.querySelector("#form");
    this.beside = document.querySelector("#beside");
    dialog.querySelector("#close-settings").addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      if (!this.placing) closed();
      this.placing = false;
    });
    // A question stays in front: what is shown as a modal dialog later would cover it.
    NARROW.addEventListener("change", () => this.place(!this.isEmpty && !document.querySelector("dialog.question:modal")));
    this.empty();
  }

  /** Show the form of an item; aside, if any, is shown below the flow. */
  show(title, content, aside = null) {
    this.isEmpty = false;
    this.aside = aside;
    this.title.textContent = title;
    this.content.replaceChildren(content);
    this.beside.replaceChildren();
    this.place(true);
  }

  empty() {
    this.isEmpty = true;
    this.aside = null;
    this.beside.replaceChildren();
    this.title.textContent = "Settings";
    this.content.replaceChildren(h("p", { class: "muted" }, "Choose an item of the flow to edit it."));
    this.place(false);
  }

  /** Go to the first field. */
  focus() {
    this.content.querySelector(".form :is(input, select, textarea, [contenteditable=true])")?.focus();
  }

  place(wanted) {
    const { dialog } = this;
    this.placing = dialog.matches(":modal");
    if (this.placing) dialog.close();
    dialog.removeAttribute("open");
    if (this.aside) (NARROW.matches ? this.content : this.beside).append(this.aside);
    if (NARROW.matches && wanted) dialog.showModal();
    // Without show(), which would move the focus into the panel.
    else if (!NARROW.matches) dialog.setAttribute("open", "");
  }
}
