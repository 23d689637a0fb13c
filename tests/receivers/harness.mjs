// Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
// `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";

const text = (encoded) => Buffer.from(encoded, "base64").toString();
const list = (field) => (field === "" ? [] : field.split(","));
// A secret stands behind "=", one of several behind a colon, anything else as JSON behind "!".
function secretsIn(field) {
  if (field.startsWith("!")) return JSON.parse(text(field.slice(1)));
  return field.startsWith("=") ? text(field.slice(1)) : list(field).map((each) => text(each.slice(1)));
}

function verdict(secrets, forms, body, now) {
  try {
    const said = new Set(forms.map((headers) => verify(secrets, headers, body, now)));
    return said.size === 1 ? String([...said][0]) : "not alike";
  } catch (error) {
    if (error instanceof TypeError) return "refused";
    throw error;
  }
}

function cases() {
  for (const line of readFileSync(0, "latin1").split("\n").slice(0, -1)) {
    const [now, secrets, pairs, body] = line.split("\t");
    const received = list(pairs).map((pair) => pair.split(":").map(text));
    const joined = {}; // as node:http does, and a list for each name as its `headersDistinct`
    const lists = {};
    for (const [name, value] of received) {
      const key = name.toLowerCase();
      joined[key] = key in joined ? `${joined[key]}, ${value}` : value;
      lists[key] = [...(lists[key] ?? []), value];
    }
    // A Map as Headers of fetch, which would not take each of these values; names as they arrived.
    const forms = [joined, lists, new Map(Object.entries(joined))];
    if (received.length === Object.keys(joined).length) forms.push(Object.fromEntries(received));
    console.log(verdict(secretsIn(secrets), forms, Buffer.from(body, "base64"), Number(now)));
  }
}

function serve() {
  const secrets = secretsIn(process.argv[3]);
  const server = createServer((request, response) => {
    const chunks = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const now = Date.now() / 1000 + (request.url.startsWith("/late") ? 302 : 0);
      response.writeHead(verify(secrets, request.headers, Buffer.concat(chunks), now) ? 204 : 401).end();
    });
  });
  server.listen(0, "127.0.0.1", () => console.log(server.address().port));
}

process.argv[2] === "cases" ? cases() : serve();
