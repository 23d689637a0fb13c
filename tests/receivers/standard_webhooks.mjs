// Verifies requests (a JSON array on the input) with the npm package, and writes its verdicts.
import { readFileSync } from "node:fs";
import { Webhook } from "standardwebhooks";

const verdicts = JSON.parse(readFileSync(0, "utf8")).map(({ secret, headers, body }) => {
  const webhook = secret.startsWith("whsec_")
    ? new Webhook(secret)
    : new Webhook(new TextEncoder().encode(secret), { format: "raw" });
  try {
    webhook.verify(body, headers, { jsonParse: false });
    return "verified";
  } catch (problem) {
    return problem.message;
  }
});
console.log(JSON.stringify(verdicts));
