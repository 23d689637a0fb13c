// The end user's widget: it shows steps and asks for the next one. Of action nodes it never learns anything.

import { call } from "./api.js";
import { $, h } from "./dom.js";

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

$("#next").addEventListener("click", next);
$("#again").addEventListener("click", () => location.reload());
