// The routes for a node that is being edited: check, preview and test.

import { call } from "./api.js";

const BASE = "/integrations/nodes";

const post = async (route, body, signal) => (await call(`${BASE}/${route}`, { method: "POST", body, signal })).data;

/** Give a node as the routes take it. */
export const draftOf = (agentId, { id, type, config }) => ({ agentId, node: { id, type, config } });

/** Find what is wrong; the provider is asked about channels and members only when told to. */
export const check = (draft, { askProvider = false, signal } = {}) => post("check", { ...draft, askProvider }, signal);

/** Make what would leave with these values. */
export const preview = (draft, walk, { signal } = {}) => post("preview", { ...draft, walk }, signal);

/** Send once for real. */
export const test = (draft, walk) => post("test", { ...draft, walk });

/** Asks once typing pauses, about the newest state only: an answer about an older one is dropped. */
export class Latest {
  constructor(wait, question, show) {
    this.wait = wait;
    this.question = question;
    this.show = show;
  }

  soon() {
    this.stop();
    this.timer = setTimeout(() => this.now(), this.wait);
  }

  async now() {
    this.stop();
    const mine = (this.asked = new AbortController());
    let answer = null;
    let failure = null;
    try {
      answer = await this.question(mine.signal);
    } catch (error) {
      failure = error;
    }
    if (!mine.signal.aborted) this.show(answer, failure);
  }

  stop() {
    clearTimeout(this.timer);
    this.asked?.abort();
  }
}
