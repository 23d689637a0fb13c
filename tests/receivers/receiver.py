"""Imports the function of docs/how-to/receive-webhooks.md.

``cases``: one case a line, one verdict a line. ``serve``: a server that prints its port and answers 204 to what verifies
and 401 to the rest.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from function import verify  # type: ignore[import-not-found]  # the page's block, beside this file where it runs


def text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def parts(field: str) -> list[str]:
    return field.split(",") if field else []


def secrets_in(field: str) -> Any:
    """A secret stands behind ``=``, one of several behind a colon, anything else as JSON behind ``!``."""
    if field.startswith(("=", "!")):
        return text(field[1:]) if field[0] == "=" else json.loads(text(field[1:]))
    return [text(each[1:]) for each in parts(field)]


def verdict(secrets: Any, forms: list[Any], body: bytes, now: int) -> str:
    try:
        said = {verify(secrets, headers, body, now) for headers in forms}
    except TypeError:
        return "refused"
    return str(said.pop()).lower() if len(said) == 1 else "not alike"


def cases() -> None:
    for line in sys.stdin.read().split("\n")[:-1]:
        now, secrets, pairs, body = line.split("\t")
        names_and_values = [pair.split(":") for pair in parts(pairs)]
        headers = [(text(name), text(value)) for name, value in names_and_values]
        forms: list[Any] = [headers, iter(headers)]
        if len(dict(headers)) == len(headers):
            forms += [dict(headers), dict(headers).items()]
        said = verdict(secrets_in(secrets), forms, base64.b64decode(body), int(now))
        sys.stdout.write(f"{said}\n")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        now = time.time() + (302 if self.path.startswith("/late") else 0)
        self.send_response(204 if verify(secrets_in(sys.argv[2]), self.headers, body, now) else 401)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def serve() -> None:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    cases() if sys.argv[1] == "cases" else serve()
