// The newest runs of a flow, and what became of each node: followed to delivered or dead.

import { call } from "./api.js";
import { badge, h, relative } from "./dom.js";

const SHOWN = 5;
const FINISHED = ["delivered", "dead"];
const OPERATOR_PAGE = "/integrations/webhooks/deliveries";
const WORDS = { recorded: "waits for its step" };

const finished = new Map(); // id → delivery, which changes no more unless an operator retries it

async function delivery(id) {
  if (finished.has(id)) return finished.get(id);
  let found = null;
  try {
    found = (await call(`/v1/webhooks/outbox/${encodeURIComponent(id)}`)).data;
  } catch (error) {
    if (error.status !== 404) throw error; // deleted: there is nothing more to tell
    found = { status: "removed", attempts: 0 };
  }
  if (FINISHED.includes(found.status) || found.status === "removed") finished.set(id, found);
  return found;
}

/** Give the last result of each node, in the order of the walk. */
function lastResults(results) {
  const last = new Map();
  for (const result of results) last.set(result.nodeId, result);
  return [...last.values()];
}

/** Read the newest runs, each delivery's state with them. */
export async function readRuns(flowId) {
  const { data } = await call(`/api/flows/${encodeURIComponent(flowId)}/runs`);
  return Promise.all(data.slice(0, SHOWN).map(async (run) => ({
    ...run,
    results: await Promise.all(lastResults(run.results).map(async (result) => ({ ...result, delivery: result.deliveryId ? await delivery(result.deliveryId) : null }))),
  })));
}

/** Draw a run; nameOf gives a node's name. */
export function drawRun(run, nameOf) {
  return h(
    "li",
    { class: "run" },
    h("p", { class: "muted" }, `${run.userId || "Somebody"}, ${relative(run.openedAt * 1000)}`),
    ...run.results.map((result) => drawResult(result, nameOf(result.nodeId))),
  );
}

function drawResult({ status, reason, message, deliveryId, delivery: found }, name) {
  const shown = found ? found.status : status;
  const attempts = found?.attempts > 1 || shown === "retrying" ? ` after ${found.attempts} ${found.attempts === 1 ? "attempt" : "attempts"}` : "";
  const why = reason ? ` · ${reason}: ${message ?? ""}` : found && shown !== "delivered" && found.lastError ? ` · ${found.lastError}` : "";
  const link = deliveryId && shown !== "removed"
    ? h("a", { href: `${OPERATOR_PAGE}/${encodeURIComponent(deliveryId)}`, "aria-label": `${name}: see the delivery` }, name)
    : name;
  return h("p", { "data-status": shown }, badge(shown), " ", link, attempts, WORDS[shown] ? `, ${WORDS[shown]}` : "", why);
}
