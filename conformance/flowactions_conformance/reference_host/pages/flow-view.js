// What is drawn of a flow: the palette of what can be added, and its items in their order.

import { $, h, icon, replaceKeepingFocus } from "./dom.js";

export const STEP = { type: "step", title: "Content step", description: "Something the end user sees." };
const STEP_ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round"><rect x="4" y="4" width="16" height="16" rx="3"/><path d="M8 9h8M8 13h8M8 17h4"/></svg>';

const COPY_ICON = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5"><rect x="5.5" y="5.5" width="8" height="8" rx="1.5"/><path d="M3.5 10.5h-1v-8h8v1"/></svg>';

/** Name an item: a step by its title, an action as its author has named it, or by its type. */
export function nameOf(item, types) {
  if (item.kind === "step") return item.title || "Untitled step";
  return item.name || (types[item.type]?.title ?? item.type);
}

/** Say in a line what an item does: for an action, the first field that it cannot do without. */
export function summary(item, types) {
  if (item.kind === "step") return item.text ?? "";
  const type = types[item.type];
  if (!type) return "No installed plugin offers this type.";
  const value = (type.configSchema.required ?? []).map((name) => item.config[name]).find((each) => typeof each === "string" && each);
  return value ?? type.description;
}

/** Draw the palette; add is called with a type's name. */
export function drawPalette(types, add) {
  const groups = new Map();
  for (const type of Object.values(types)) groups.set(type.category, [...(groups.get(type.category) ?? []), type]);
  const choice = (name, svg, title, reason = null) =>
    h("li", {}, h("button", { class: "choice", "data-testid": `add-${name}`, disabled: Boolean(reason), click: () => add(name) }, icon(svg), h("span", {}, title), reason && h("small", {}, reason)));
  $("#palette").replaceChildren(
    h("ul", { class: "plain" }, choice(STEP.type, STEP_ICON, STEP.title)),
    ...[...groups].flatMap(([category, members]) => [
      h("h3", {}, category),
      h("ul", { class: "plain" }, ...members.map((type) => choice(type.name, type.icon, type.title, type.available ? null : (type.unavailableReason ?? "Not available.")))),
    ]),
    h("details", {}, h("summary", { class: "help" }, "What they do"), ...[STEP, ...Object.values(types)].map(({ title, description }) => h("p", { class: "help" }, h("strong", {}, title), `: ${description}`))),
  );
}

/**
 * Draw the items. view: items, types, selected, problems(item), result(item, name), unsaved(item), and what the buttons do: select, move,
 * copy, remove. Alt with an arrow key moves the item whose button has the focus.
 */
export function drawItems(view) {
  const { items, types } = view;
  $("#no-items").hidden = items.length > 0;
  const drawn = items.map((item, index) => {
    const name = nameOf(item, types);
    const button = (sign, label, click, disabled = false) => h("button", { class: "quiet small", "data-key": `${item.id} ${label}`, "aria-label": `${label}: ${name}`, title: label, disabled, click }, sign);
    const move = (by, arrow, label) => button(arrow, label, () => view.move(item, by), !items[index + by]);
    const problems = view.problems(item).map(({ severity, message }) => h("p", { class: severity === "error" ? "problem error" : "problem warning" }, message));
    return h(
      "li",
      { "data-item-id": item.id, "data-type": item.kind === "step" ? "step" : item.type, keydown: (event) => {
        const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
        if (!by || !event.altKey) return;
        event.preventDefault();
        if (items[index + by]) view.move(item, by);
      } },
      h(
        "button",
        { class: "choice", "data-key": item.id, "aria-current": String(item === view.selected), click: () => view.select(item) },
        icon(item.kind === "step" ? STEP_ICON : (types[item.type]?.icon ?? "")),
        h("span", {}, name),
        view.unsaved(item) ? h("em", { class: "unsaved" }, "not saved") : null,
        h("small", {}, summary(item, types)),
      ),
      view.result(item, name),
      h("div", { class: "moves" }, move(-1, "↑", "Move up"), button(icon(COPY_ICON), "Copy", () => view.copy(item)), move(1, "↓", "Move down"), button("×", "Remove", () => view.remove(item))),
      ...problems,
    );
  });
  replaceKeepingFocus($("#items"), drawn);
}
