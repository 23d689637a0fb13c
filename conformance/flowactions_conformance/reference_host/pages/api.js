// Calls to the host's and the plugin's routes.

import { header } from "./dom.js";

/** An answer other than success; its message is for people. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.detail ?? `The server answered ${status}.`);
    this.status = status;
  }
}

let unsaved = () => false;

/** Call a route. A session that has ended leads to the sign-in page, unless something would be lost on the way. */
export async function call(path, { method = "GET", body, signal } = {}) {
  const answer = await fetch(path, {
    method,
    signal,
    headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
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
  if (!answer.ok) throw new Refused(answer.status, content);
  return content;
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
