// The newest runs of a flow, step by step: what was shown, and the result of each node, followed to delivered or dead.

import { call } from "./api.js";
import { badge, h, relative } from "./dom.js";
import { nameOf } from "./flow-view.js";

const SHOWN = 5;
const FINISHED = ["delivered", "dead", "removed"];
const OPERATOR_PAGE = "/integrations/webhooks/deliveries";

const finished = new Map(); // id → delivery, which changes no more unless an operator retries it
const opened = new Map(); // id of a run → whether the author has opened or closed it

async function delivery(id) {
  if (finished.has(id)) return finished.get(id);
  let found = null;
  try {
    found = (await call(`/v1/webhooks/outbox/${encodeURIComponent(id)}`)).data;
  } catch (error) {
    if (error.status !== 404) throw error; // deleted: there is nothing more to tell
    found = { status: "removed", attempts: 0 };
  }
  if (FINISHED.includes(found.status)) finished.set(id, found);
  return found;
}

/** Give the items of a run in the order of the walk, each with whether the run has come to it, and an action's last result. */
function walkOf({ kind, items, position, results }) {
  const last = new Map(results.map((result) => [result.nodeId, result]));
  let halted = false;
  let steps = 0;
  return items.map((item) => {
    const result = last.get(item.id);
    const reached = item.kind === "step" ? !halted && (kind === "single_shot" || steps++ <= position) : Boolean(result);
    halted ||= Boolean(result?.halt);
    return { item, reached, result };
  });
}

/** Read the newest runs, or the one of a session, each delivery's state with them. */
export async function readRuns(flowId, session = "") {
  const { data } = await call(`/api/flows/${encodeURIComponent(flowId)}/runs?${new URLSearchParams({ session })}`);
  return Promise.all(data.slice(0, SHOWN).map(async (run) => ({
    ...run,
    walk: await Promise.all(walkOf(run).map(async (each) => ({ ...each, delivery: each.result?.deliveryId ? await delivery(each.result.deliveryId) : null }))),
  })));
}

/** Draw a run, which is folded unless it is open or its author has opened it. */
export function drawRun(run, types, open) {
  const lines = run.walk.map((each) => {
    const name = nameOf(each.item, types);
    return h("li", {}, name, " ", drawResult(each, name));
  });
  const states = run.walk.filter(({ result }) => result).map(({ result, delivery: found }) => found?.status ?? result.status);
  const details = h(
    "details",
    { open: opened.get(run.runId) ?? open },
    h("summary", { class: "muted", "data-key": run.runId, click: () => opened.set(run.runId, !details.open) }, whose(run), h("span", { class: "folded" }, states.map((state) => ` · ${state}`).join(""))),
    h("ol", { class: "plain" }, ...lines),
  );
  return h("li", { class: "run" }, details);
}

/** Say whose run it is, and when it was opened. */
export const whose = ({ userId, openedAt }) => `${userId || "Somebody"}, ${relative(openedAt * 1000)}`;

/** Draw what a run did at an item, with a link to its delivery. */
export function drawResult({ item, reached, result, delivery: found }, name) {
  if (item.kind === "step" || !result) return h("div", { class: "result" }, badge(reached ? "shown" : "not reached"));
  const { status, reason, message, deliveryId } = result;
  const shown = found?.status ?? status;
  const attempts = found?.attempts > 1 || shown === "retrying" ? `after ${found.attempts} ${found.attempts === 1 ? "attempt" : "attempts"}` : "";
  const why = reason ? `${reason}: ${message ?? ""}` : shown === "recorded" ? "waits for its step" : shown === "delivered" ? "" : (found?.lastError ?? "");
  const link = deliveryId && shown !== "removed" ? h("a", { href: `${OPERATOR_PAGE}/${encodeURIComponent(deliveryId)}`, target: "_blank", rel: "noopener", "aria-label": `${name}: see the delivery` }, "See the delivery") : null;
  const more = [attempts, why].filter(Boolean).join(" · ");
  return h("div", { class: "result", "data-status": shown }, badge(shown), more || link ? h("p", { class: "help" }, more, more && link ? " · " : "", link) : null);
}
