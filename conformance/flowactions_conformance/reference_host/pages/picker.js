// A searchable choice, fed by a route: {data: [{id, label, note}], nextCursor, notice}. An id can be typed as well.

import { call } from "./api.js";
import { h } from "./dom.js";

const DEBOUNCE_MS = 200;

export function picker(route, attributes, value, set) {
  const list = h("ul", { id: `${attributes.id}-choices`, role: "listbox", hidden: true });
  const note = h("p", { class: "help", "aria-live": "polite" });
  const input = h("input", {
    ...attributes,
    placeholder: "Search by name, or enter an ID",
    role: "combobox",
    autocomplete: "off",
    "aria-expanded": "false",
    "aria-controls": list.id,
    "aria-autocomplete": "list",
    focus: () => search(""),
    blur: () => setTimeout(close, 150),
    keydown,
    input: () => {
      set(input.value.trim());
      clearTimeout(waiting);
      waiting = setTimeout(() => search(input.value), DEBOUNCE_MS);
    },
  });
  input.value = value;
  let waiting;
  let choices = [];
  let active = -1;
  let asked = 0;

  function close() {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  async function search(text, cursor) {
    const mine = ++asked;
    const query = new URLSearchParams({ search: text, ...(cursor ? { cursor } : {}) });
    try {
      const page = await call(`${route}?${query}`);
      if (mine !== asked) return;
      choices = cursor ? [...choices, ...page.data] : page.data;
      draw(text, page.nextCursor);
      const nothing = choices.length ? "" : page.nextCursor ? "Nothing was found yet: choose More …" : "Nothing was found by this name.";
      note.textContent = [nothing, page.notice].filter(Boolean).join(" ");
    } catch (error) {
      choices = [];
      close();
      note.textContent = `${error.message} An ID can still be entered.`;
    }
  }

  function draw(text, cursor) {
    list.replaceChildren(
      ...choices.map((choice, index) =>
        h("li", { role: "option", id: `${list.id}-${index}`, "data-id": choice.id, "aria-selected": "false", mousedown: () => choose(choice) }, choice.label, choice.note ? h("small", {}, choice.note) : null),
      ),
    );
    if (cursor) list.append(h("li", { mousedown: (event) => { event.preventDefault(); search(text, cursor); } }, "More …"));
    list.hidden = !list.children.length || document.activeElement !== input;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }

  function choose(choice) {
    input.value = choice.id;
    note.textContent = [choice.label, choice.note].filter(Boolean).join(" · ");
    set(choice.id);
    close();
  }

  function keydown(event) {
    if (event.key === "Escape") return close();
    if (event.key === "Enter" && active >= 0) {
      event.preventDefault();
      return choose(choices[active]);
    }
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !choices.length || list.hidden) return;
    event.preventDefault();
    active = (active + step + choices.length) % choices.length;
    [...list.children].forEach((item, index) => item.setAttribute("aria-selected", String(index === active)));
    input.setAttribute("aria-activedescendant", `${list.id}-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  }

  const element = h("div", { class: "picker" }, input, list, note);
  return element;
}
