// The chat connection: connect, see it, choose a default channel, send a test message, disconnect.

import { begin, call } from "./api.js";
import { $, badge, h } from "./dom.js";
import { picker } from "./picker.js";

const BASE = "/integrations/chat";
const REASONS = {
  cancelled: "You cancelled at the chat provider. Nothing was changed.",
  expired: "The link had expired. Connect again.",
  already_used: "This link was used already. Look below whether the workspace is connected; if not, connect again.",
  invalid_state: "The link was not made by this service. Connect again.",
  wrong_browser: "The install was started in another browser. Connect again here.",
  wrong_organization: "The install was started by another organization. Connect again as the one that you are signed in to.",
  no_code: "The chat provider sent no code. Connect again.",
  provider_error: "The chat provider reported an error. Connect again later.",
  missing_scope: "The workspace did not grant every permission. Connect again and allow them all.",
  invalid_code: "The link had expired at the chat provider, or was used already. Connect again.",
  enterprise_install: "The app was installed for a whole organization at the provider. Connect again and choose one workspace.",
  token_rotation: "The app gets tokens that expire, which are not supported. Ask the people who operate this service.",
  bad_redirect_uri: "The chat app does not know this service's callback address. Tell the operator of this service.",
  bad_client_secret: "The chat app's secret is set wrongly. Tell the operator of this service.",
  invalid_client_id: "The chat app's id is set wrongly. Tell the operator of this service.",
  unreachable: "The chat provider did not answer. Connect again later.",
  unreadable_answer: "The chat provider answered, but not as Slack does. Ask the people who operate this service.",
};

let shown = null; // the ETag of the connection that is on the page

function connectLink(text) {
  return h("a", { class: "button", id: "connect", href: `${BASE}/install` }, text);
}

function details(card) {
  const agents = card.agents.map(({ name }) => name).join(", ") || "none yet";
  const rows = {
    Workspace: card.workspace.name,
    "Connected by": `${card.installedBy.name}, ${new Date(card.installedAt).toLocaleString()}`,
    "Used by": agents,
    Permissions: card.scopes.join(", "),
    ...(card.missingScopes.length ? { "Not granted": card.missingScopes.join(", ") } : {}),
  };
  return h("dl", {}, ...Object.entries(rows).flatMap(([term, value]) => [h("dt", {}, term), h("dd", {}, value)]));
}

function defaultChannel(card) {
  const saved = h("p", { class: "help", role: "status" });
  let chosen = card.defaultChannel ?? "";
  const choice = picker(`${BASE}/channels`, { id: "default-channel" }, chosen, (id) => { chosen = id; });
  const save = async () => {
    try {
      ({ etag: shown } = await call(`${BASE}/connection/default-channel`, { method: "PUT", body: { channelId: chosen }, headers: { "if-match": shown } }));
      saved.textContent = "Saved.";
    } catch (error) {
      if (error.status !== 412) saved.textContent = error.message;
      else await draw(`Not saved: somebody else has changed the connection. It is shown as it is now. You had chosen ${choice.input.value}.`);
    }
  };
  return h("div", { class: "field" }, h("label", { for: "default-channel" }, "Default channel"), h("div", { class: "row", style: "align-items:start" }, h("div", { style: "flex:1" }, choice.element), h("button", { class: "quiet", id: "save-channel", click: save }, "Save")), saved);
}

function testMessage() {
  const outcome = h("p", { class: "help", id: "test-outcome", role: "status" });
  const text = h("input", { id: "test-text", maxlength: "4000" });
  text.value = "Hello from the flow editor!";
  const send = async () => {
    outcome.textContent = "Sending …";
    try {
      const { data } = await call(`${BASE}/send-message`, { method: "POST", body: { text: text.value } });
      outcome.textContent = data.ok ? `Sent (${data.ts}).` : `Not sent: ${data.message}`;
    } catch (error) {
      outcome.textContent = `Not sent: ${error.message}`;
    }
  };
  return h("div", { class: "field" }, h("label", { for: "test-text" }, "Test message"), h("div", { class: "row" }, h("div", { style: "flex:1" }, text), h("button", { class: "quiet", id: "send-test", click: send }, "Send")), outcome);
}

async function disconnect() {
  const dialog = $("#confirm");
  dialog.returnValue = "";
  dialog.showModal();
  await new Promise((closed) => dialog.addEventListener("close", closed, { once: true }));
  if (dialog.returnValue !== "yes") return;
  try {
    await call(`${BASE}/connection`, { method: "DELETE", headers: { "if-match": shown } });
  } catch (error) {
    return draw(`Not disconnected: ${error.message}`);
  }
  return draw();
}

/** Show the connection, and what was refused because it is another than the one that was shown. */
async function draw(refused = "") {
  const title = (...more) => h("div", { class: "row spread" }, h("h2", { id: "chat-title", style: "margin:0" }, "Chat workspace"), ...more);
  let card;
  try {
    ({ data: card, etag: shown } = await call(`${BASE}/connection`));
  } catch (error) {
    return $("#chat").replaceChildren(title(), h("p", { class: "muted" }, error.message));
  }
  const note = refused ? [h("p", { class: "error", role: "alert", id: "refused" }, refused)] : [];
  if (!card) return $("#chat").replaceChildren(title(), ...note, h("p", {}, "No workspace is connected. Chat messages of your flows are not sent."), connectLink("Connect a workspace"));
  const ended = card.status !== "active";
  $("#chat").replaceChildren(
    title(badge(card.status)),
    ...note,
    ...(card.advice ? [h("p", { class: "error", id: "advice", style: "margin-bottom:1rem" }, card.advice)] : []),
    details(card),
    ...(ended ? [] : [defaultChannel(card), testMessage()]),
    h("div", { class: "row" }, connectLink("Reconnect"), h("button", { class: "danger", id: "disconnect", click: disconnect }, "Disconnect")),
  );
}

function notice() {
  const query = new URLSearchParams(location.search);
  const outcome = query.get("chat");
  if (!outcome) return;
  const reason = query.get("reason") ?? "";
  $("#notice").hidden = false;
  $("#notice").classList.toggle("bad", outcome !== "connected");
  $("#notice").textContent = outcome === "connected" ? "The workspace is connected." : (REASONS[reason] ?? `The workspace could not be connected (${reason}).`);
  history.replaceState(null, "", location.pathname);
}

await begin();
notice();
await draw();
