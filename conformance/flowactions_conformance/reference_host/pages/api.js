// Calls to the host's and the plugin's routes.

import { header } from "./dom.js";

/** What authors read where the plugin's answer names the setting that an operator has to set. */
const NOT_SET_UP = "This is not set up in this service. Ask the people who operate it.";

/** An answer other than success; its message is for people. */
export class Refused extends Error {
  constructor(status, body, etag = null) {
    super(body?.code === "not_configured" ? NOT_SET_UP : (body?.detail ?? `The server answered ${status}.`));
    this.status = status;
    this.extra = body?.extra;
    this.etag = etag;
  }
}

let unsaved = () => false;

/**
 * Call a route, and give its content, with the answer's ETag when it has one. A session that has ended leads to the sign-in page,
 * unless something would be lost on the way.
 */
export async function call(path, { method = "GET", body, signal, headers = {} } = {}) {
  const answer = await fetch(path, {
    method,
    signal,
    headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch((error) => {
    throw error.name === "AbortError" ? error : new Refused(0, { detail: "The server did not answer. Try again." });
  });
  if (answer.status === 401 && location.pathname !== "/login") {
    if (unsaved()) throw new Refused(401, { detail: "You are signed out. Sign in again in another tab, then save here." });
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
    return new Promise(() => {});
  }
  const text = await answer.text();
  let content = null;
  try {
    content = text ? JSON.parse(text) : null;
  } catch {
    // A body that is no JSON has nothing to say.
  }
  const etag = answer.headers.get("etag");
  if (!answer.ok) throw new Refused(answer.status, content, etag);
  return etag && content ? { ...content, etag } : content;
}

/**
 * Begin a dashboard page: fill the header in.
 *
 * hasChanges says whether something is not saved; mayLeave asks what to do about it, and whether to go on.
 */
export async function begin({ hasChanges = () => false, mayLeave = async () => true } = {}) {
  unsaved = hasChanges;
  const { data } = await call("/api/me");
  header(data, async () => {
    if (!(await mayLeave())) return;
    await call("/logout", { method: "POST" });
    location.assign("/login");
  });
  return data;
}
