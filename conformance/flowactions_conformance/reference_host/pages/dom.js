// Small helpers for building pages. Text only ever enters a page as text.

/** Make an element: attributes, properties that are functions as listeners, then children. */
export function h(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export const $ = (selector) => document.querySelector(selector);

/** Show a status word as a badge. */
export const badge = (word) => h("span", { class: `badge ${word}` }, word);

/** Give an SVG that the server sent, without anything that could run. */
export function icon(svg) {
  const drawn = new DOMParser().parseFromString(svg, "image/svg+xml").documentElement;
  if (drawn.nodeName !== "svg") return h("span", { class: "icon" });
  for (const element of [drawn, ...drawn.querySelectorAll("*")]) {
    if (["script", "foreignObject", "a", "use", "image"].includes(element.nodeName)) element.remove();
    for (const { name } of [...element.attributes]) {
      if (name.startsWith("on") || name.includes("href") || name === "style") element.removeAttribute(name);
    }
  }
  drawn.setAttribute("aria-hidden", "true");
  return drawn;
}

/** Say how long ago, or in how long, a time is. */
export function relative(time) {
  if (!time) return "";
  const seconds = (new Date(time) - Date.now()) / 1000;
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  const [unit, size] = [["day", 86400], ["hour", 3600], ["minute", 60]].find(([, s]) => Math.abs(seconds) >= s) ?? ["second", 1];
  return words.format(Math.round(seconds / size), unit);
}

/** Put the keys of the page's header in place: navigation, who is signed in, sign out. */
export function header(me, signOut) {
  const here = location.pathname;
  const links = [["/editor", "Editor"], ["/connections", "Connections"], ["/integrations/webhooks/deliveries", "Deliveries"]];
  $("header.top").replaceChildren(
    h("a", { class: "skip", href: "#main" }, "Skip to content"),
    h("strong", {}, "Reference host"),
    h("nav", { "aria-label": "Dashboard" }, ...links.map(([path, name]) => h("a", { href: path, "aria-current": path === here ? "page" : null }, name))),
    h("span", { class: "who" }, `${me.userName}, ${me.organizationName}`),
    h("button", { class: "quiet small", click: signOut }, "Sign out"),
  );
}

/** What is replaced when the pointer is released: a click is lost if its button is replaced between pressing and releasing. */
const waiting = new Map();
/** For a release that is never reported. */
const LONGEST_PRESS_MS = 60_000;
let pressed = 0;

function endPress() {
  clearTimeout(pressed);
  pressed = 0;
}

function release() {
  endPress();
  for (const replace of [...waiting.values()]) replace();
}

addEventListener("pointerdown", () => { pressed = setTimeout(release, LONGEST_PRESS_MS); }, true);
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(release), true);
// What the click itself changes is shown at once.
addEventListener("click", endPress, true);

/** Replace children by new ones, unless they are the same; what had the focus has it again. */
export function replaceKeepingFocus(element, children) {
  if (pressed) return void waiting.set(element, () => replaceKeepingFocus(element, children));
  waiting.delete(element);
  const same = children.length === element.children.length && children.every((child, index) => child.isEqualNode(element.children[index]));
  if (same) return;
  const active = element.contains(document.activeElement) ? document.activeElement : null;
  const key = active && (active.dataset.key ?? active.getAttribute("href"));
  element.replaceChildren(...children);
  if (!key) return;
  const found = [...element.querySelectorAll("[data-key], [href]")].find((each) => (each.dataset.key ?? each.getAttribute("href")) === key);
  // At an end of the list, a button is disabled that was just pressed.
  (found?.disabled ? found.parentElement.querySelector("button:enabled") : found)?.focus();
}
