// Sign-in without passwords, for a demonstration on the person's own machine.

import { call } from "./api.js";
import { $, h } from "./dom.js";

const next = new URLSearchParams(location.search).get("next") ?? "";
const target = /^\/(?![/\\])/.test(next) ? next : "/editor";

async function signIn(userId) {
  await call("/login", { method: "POST", body: { userId } });
  location.assign(target);
}

const { data } = await call("/api/people");
$("#people").replaceChildren(...data.map(({ userId, userName, organizationName, operator }) => h("li", {}, h("button", { class: "choice text", "data-testid": `sign-in-${userId}`, click: () => signIn(userId) }, h("span", {}, userName), h("small", {}, operator ? "operates the host" : organizationName)))));
