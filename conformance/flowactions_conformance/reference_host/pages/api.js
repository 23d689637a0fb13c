// Calls to the host's and the plugin's routes.

import { header } from "./dom.js";

/** An answer other than success; its message is for people. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.detail ?? `The server answered ${status}.`);
    this.status = status;
  }
}

/** Call a route; a session that has ended leads to the sign-in page. */
export async function call(path, { method = "GET", body } = {}) {
  const answer = await fetch(path, {
    method,
    headers: { accept: "application/json", ...(body === undefined ? {} : { "content-type": "application/json" }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.status === 401 && location.pathname !== "/login") {
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

/** Begin a dashboard page: fill the header in. */
export async function begin() {
  const { data } = await call("/api/me");
  header(data, async () => {
    await call("/logout", { method: "POST" });
    location.assign("/login");
  });
  return data;
}
