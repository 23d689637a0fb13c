// Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
// `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.
import { IncomingMessage, createServer } from "node:http";
import { readFileSync } from "node:fs";

const text = (encoded) => Buffer.from(encoded, "base64").toString();
const list = (field) => (field === "" ? [] : field.split(","));
// A secret stands behind "=", one of several behind a colon, anything else as JSON behind "!".
function secretsIn(field) {
  if (field.startsWith("!")) return JSON.parse(text(field.slice(1)));
  return field.startsWith("=") ? text(field.slice(1)) : list(field).map((each) => text(each.slice(1)));
}

function verdict(secrets, forms, now) {
  try {
    const said = new Set(forms.map(([headers, body]) => verify(secrets, headers, body, now)));
    return said.size === 1 ? String([...said][0]) : "not alike";
  } catch (error) {
    if (error instanceof TypeError) return "refused";
    throw error;
  }
}

// What was not refused, although it is no form of headers or of a body.
function taken(secrets, headers, body) {
  const wrong = [
    ...[undefined, null, {}, 5, "text"].map((other) => [headers, other]),
    ...[undefined, null, 5, "x: y", ["x: y"], ["x", "y"], [["x", "y"]]].map((other) => [other, body]),
    ...[1, null, {}].map((other) => [{ "x-service-webhook-timestamp": other, "x-service-webhook-signature": "v1," }, body]),
  ];
  return wrong.flatMap((form) => {
    try {
      return [`${verify(secrets, ...form)} for ${JSON.stringify(form)}`];
    } catch (error) {
      return error instanceof TypeError && error.message.includes("must be") ? [] : [String(error)];
    }
  });
}

function cases() {
  for (const line of readFileSync(0, "latin1").split("\n").slice(0, -1)) {
    const [now, secrets, pairs, encoded, events] = line.split("\t");
    const body = Buffer.from(encoded, "base64");
    const received = list(pairs).map((pair) => pair.split(":").map(text));
    const joined = {}; // as node:http does, and a list for each name as its `headersDistinct`
    const lists = {};
    for (const [name, value] of received) {
      const key = name.toLowerCase();
      joined[key] = key in joined ? `${joined[key]}, ${value}` : value;
      lists[key] = [...(lists[key] ?? []), value];
    }
    // A Map where Headers of fetch would not take each of these values; names as they arrived; whole requests.
    const forms = [joined, lists, new Map(Object.entries(joined)), { headers: joined, rawHeaders: [], method: "POST" }];
    if (received.length === Object.keys(joined).length) forms.push(Object.fromEntries(received));
    if (received.every(([, value]) => /^[!-~]([ -~]*[!-~])?$/.test(value))) {
      const request = new Request("http://localhost/", { headers: received });
      forms.push(request, request.headers, Object.assign(new IncomingMessage(null), { headers: joined }));
    }
    const given = forms.flatMap((headers) => [[headers, body], [headers, new Uint8Array(body)]]);
    if (body.length === 0) given.push([joined, ""]);
    const said = verdict(secretsIn(secrets), [...given, ...JSON.parse(text(events)).map((event) => [event])], Number(now));
    const wrong = said === "refused" ? [] : taken(secretsIn(secrets), joined, body);
    console.log(wrong.length > 0 ? wrong[0] : said);
  }
}

function serve() {
  const secrets = secretsIn(process.argv[3]);
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const now = Date.now() / 1000 + (request.url.startsWith("/late") ? 302 : 0);
      response.writeHead(verify(secrets, request, Buffer.concat(chunks), now) ? 204 : 401).end();
    });
  });
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
}

process.argv[2] === "cases" ? cases() : serve();
