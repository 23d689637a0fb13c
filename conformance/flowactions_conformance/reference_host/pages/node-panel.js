// The panel of one action node: its form, what is wrong with it while one types, what it would send, and a test.

import { badge, h, icon } from "./dom.js";
import { Latest, check, draftOf, preview, test } from "./drafts.js";
import { formatted } from "./mrkdwn.js";
import { SchemaForm } from "./schema-form.js";

const PAUSE_MS = 300;
const DELIVERIES = "/integrations/webhooks/deliveries";

// Kept while the page is open, whichever node is edited.
const sample = { userId: "sample-user", content: "This is a sample message." };

/**
 * Edits a node. context: agentId(), flowId, fresh (whether the node was just added), changed(), and found(problems),
 * which is called with each answer.
 */
export class NodePanel {
  constructor(item, nodeType, context) {
    this.item = item;
    this.nodeType = nodeType;
    this.context = context;
    this.ofProvider = [];
    this.found = [];
    this.form = new SchemaForm(nodeType, item.config, { changed: (name) => this.changed(name), all: !context.fresh });
    this.checking = new Latest(PAUSE_MS, (signal) => check(this.draft(), { signal }), (found, failure) => this.show(found, failure));
    this.asking = new Latest(PAUSE_MS, (signal) => check(this.draft(), { askProvider: true, signal }), (found) => this.showProvider(found));
    this.previewing = new Latest(PAUSE_MS, (signal) => preview(this.draft(), this.walk(), { signal }), (shown, failure) => this.showPreview(shown, failure));
    this.tried = this.trying();
    this.form.element.addEventListener("named", () => this.previewing.soon()); // it shows a channel's name
    this.checking.now();
    this.previewing.now();
    if (this.asksProvider()) this.asking.now();
  }

  draft() {
    return draftOf(this.context.agentId(), this.item);
  }

  walk() {
    return { flowId: this.context.flowId, ...sample };
  }

  asksProvider() {
    return Object.keys(this.nodeType.pickers).some((name) => this.item.config[name]);
  }

  changed(name) {
    // What the provider says of a channel or member holds until another one is chosen.
    if (name in this.nodeType.pickers || name in (this.nodeType.configSchema.dependencies ?? {})) {
      this.ofProvider = [];
      if (this.asksProvider()) this.asking.soon();
      else this.asking.stop();
    }
    this.checking.soon();
    this.previewing.soon();
    this.context.changed();
  }

  show(found, failure) {
    this.found = failure ? [{ path: [], severity: "warning", message: `Not checked: ${failure.message}` }] : found;
    this.tell();
  }

  showProvider(found) {
    this.ofProvider = found ?? [];
    this.tell();
  }

  tell() {
    const known = new Set(this.found.map(same));
    const problems = [...this.found, ...this.ofProvider.filter((problem) => problem.path.join("/") in this.nodeType.pickers && !known.has(same(problem)))];
    this.form.show(problems);
    this.context.found(problems);
  }

  /** Take what the host found when it saved; a check of what was written since then is on its way. */
  saved(problems) {
    this.found = problems;
    this.tell();
  }

  commit() {
    this.form.commit();
  }

  showAll() {
    this.form.showAll();
  }

  close() {
    for (const each of [this.checking, this.asking, this.previewing]) each.stop();
  }

  trying() {
    this.shown = h("div", { class: "preview", id: "preview" });
    this.outcome = h("div", { id: "test-outcome", role: "status" });
    this.button = h("button", { type: "button", id: "test", class: "quiet", click: () => this.test() }, "Test this node");
    const values = Object.entries(sample).map(([name, value]) => {
      const input = h("input", { id: `sample-${name}`, autocomplete: "off", input: () => { sample[name] = input.value; this.previewing.soon(); } });
      input.value = value;
      return h("div", { class: "field" }, h("label", { for: input.id }, h("code", {}, `{{${name}}}`)), input);
    });
    return h(
      "section",
      { class: "card try", "aria-labelledby": "preview-title" },
      h("h2", { id: "preview-title" }, "Preview with sample values"),
      h("div", { class: "values" }, ...values),
      this.shown,
      h("h3", {}, "Test"),
      h("p", { class: "help" }, "Sends one real request now, with the sample values."),
      this.button,
      this.outcome,
    );
  }

  showPreview(shown, failure) {
    if (failure) return this.shown.replaceChildren(h("p", { class: "problem warning" }, `No preview: ${failure.message}`));
    const parts = [];
    const open = Boolean(this.shown.querySelector("details")?.open);
    if (shown.url) parts.push(h("p", { class: "line" }, h("strong", {}, shown.method ?? ""), " ", shown.url));
    if (shown.headers?.length) parts.push(h("details", { open }, h("summary", {}, `${shown.headers.length} headers`), h("dl", {}, ...shown.headers.flatMap(({ key, value }) => [h("dt", {}, key), h("dd", {}, value)]))));
    if (shown.body != null) parts.push(h("pre", { tabindex: "0", "aria-label": "Body" }, shown.body));
    if (shown.text != null) parts.push(this.message(shown));
    if (!parts.length) parts.push(h("p", { class: "muted" }, shown.problems[0]?.message ?? "Nothing would be sent."));
    else if (shown.problems.some(({ severity }) => severity === "error")) parts.push(h("p", { class: "problem error" }, "This will not be sent until you fix the problems in the form."));
    return this.shown.replaceChildren(...parts);
  }

  /** Show a message as people in the workspace see it. */
  message({ target, text }) {
    const said = [icon(this.nodeType.icon), h("div", {}, h("strong", {}, "Your app"), " ", h("small", { class: "app" }, "APP"), " ", h("small", {}, "now")), h("blockquote", {}, ...formatted(text))];
    return h("div", { class: "message" }, target ? h("p", {}, this.form.label(target)) : null, h("div", { class: "said" }, ...said));
  }

  async test() {
    this.commit();
    this.showAll();
    this.button.disabled = true;
    this.outcome.replaceChildren(h("p", { class: "muted" }, "Sending …"));
    try {
      this.showOutcome(await test(this.draft(), this.walk()));
    } catch (error) {
      this.outcome.replaceChildren(h("p", { class: "problem error" }, `Not tested: ${error.message}`));
    } finally {
      this.button.disabled = false;
    }
  }

  showOutcome({ status, message, statusCode, response, durationMs, deliveryId }) {
    const answered = [statusCode && !message?.includes(statusCode) ? `It answered ${statusCode}` : "", durationMs == null ? "" : `after ${durationMs} ms`].filter(Boolean).join(" ");
    this.outcome.replaceChildren(
      h("p", {}, badge(status), " ", sentence(answered, message)),
      ...(response ? [h("pre", { tabindex: "0", "aria-label": "Answer" }, response)] : []),
      ...(deliveryId ? [h("p", {}, h("a", { href: `${DELIVERIES}/${encodeURIComponent(deliveryId)}`, target: "_blank", rel: "noopener" }, "See the delivery"))] : []),
    );
  }
}

const sentence = (answered, message) => [answered && `${answered[0].toUpperCase()}${answered.slice(1)}.`, message].filter(Boolean).join(" ");
const same = ({ path, code }) => JSON.stringify([path, code]);
