// The end user's widget: it shows steps and asks for the next one. Of action nodes it never learns anything.
// Beside it, the flow's author, who comes from the editor, reads in the dashboard's API what the flow did.

import { begin, call } from "./api.js";
import { $, h, replaceKeepingFocus } from "./dom.js";
import { drawRun, readRuns } from "./runs.js";

const FOLLOW_MS = 1000;
const flowId = decodeURIComponent(location.pathname.split("/").pop());
let turn = null;
let asked = 0; // how often the same step was asked for

const bubble = ({ title, text }) => h("div", { class: "bubble" }, h("h2", {}, title), h("p", {}, text));

function show(next) {
  turn = next;
  $("#opening").hidden = true;
  $("#flow").hidden = false;
  const shown = turn.step ? [turn.step] : turn.steps;
  if (shown.length) $("#steps").replaceChildren(...shown.map(bubble));
  else if (!turn.done) $("#steps").replaceChildren(h("p", { class: "muted" }, "Press Next to begin."));
  $("#next").hidden = turn.done;
  $("#done").hidden = !turn.done;
  $("#again").hidden = !turn.done;
}

async function ask(path, body, button) {
  button.disabled = true;
  try {
    show((await call(path, { method: "POST", body })).data);
  } catch {
    $("#steps").replaceChildren(h("p", {}, "Something went wrong. Please try again."));
    $("#flow").hidden = false;
  } finally {
    button.disabled = false;
  }
}

$("#opening").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(`/run/flows/${encodeURIComponent(flowId)}/open`, { userId: $("#user").value, content: $("#content").value }, $("#start"));
});
async function next() {
  const from = turn.step?.id ?? null;
  await ask(`/run/sessions/${turn.session}/next`, { from }, $("#next"));
  // The turn stays while another request is running the nodes before the step.
  const stays = !turn.done && (turn.step?.id ?? null) === from;
  asked = stays ? asked + 1 : 0;
  if (stays && asked < 40) setTimeout(next, 500);
}

/** Show the author what the run did so far. */
async function follow(types) {
  if (!turn || document.hidden) return;
  const runs = await readRuns(flowId, turn.session);
  $("#not-yet").hidden = true;
  replaceKeepingFocus($("#run"), runs.map((run) => drawRun(run, types, true)));
}

$("#next").addEventListener("click", next);
$("#again").addEventListener("click", () => location.reload());
if (new URLSearchParams(location.search).has("author")) {
  await begin();
  for (const hidden of ["header", "#walk"]) $(hidden).hidden = false;
  const types = Object.fromEntries((await call("/api/node-types")).data.map((type) => [type.name, type]));
  setInterval(() => follow(types).catch(() => {}), FOLLOW_MS);
}
