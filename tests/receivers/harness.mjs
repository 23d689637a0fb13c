// Appended to the function of docs/how-to/receive-webhooks.md. `cases`: one case a line, one verdict a line;
// `serve`: a server that prints its port and answers 204 to what verifies and 401 to the rest.
import { createServer } from "node:http";
import { readFileSync } from "node:fs";

const text = (encoded) => Buffer.from(encoded, "base64").toString();
const list = (field) => (field === "" ? [] : field.split(","));
// An encoded secret may be empty, so each stands behind a colon.
const secretsIn = (field) => list(field).map((each) => text(each.slice(1)));

function cases() {
  for (const line of readFileSync(0, "latin1").split("\n").slice(0, -1)) {
    const [now, secrets, pairs, body] = line.split("\t");
    const headers = {};
    for (const pair of list(pairs)) {
      const [name, value] = pair.split(":").map(text);
      const key = name.toLowerCase();
      headers[key] = key in headers ? `${headers[key]}, ${value}` : value; // as node:http does
    }
    console.log(verify(secretsIn(secrets), headers, Buffer.from(body, "base64"), Number(now)));
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
