"""Imports the function of docs/how-to/receive-webhooks.md.

``cases``: one case a line, one verdict a line. ``serve``: a server that prints its port and answers 204 to what verifies
and 401 to the rest.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from email.message import Message
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from typing import Any

import django.conf
from aiohttp.test_utils import make_mocked_request
from django.http import HttpHeaders, HttpRequest
from flask import Request as FlaskRequest
from function import verify  # type: ignore[import-not-found]  # the page's block, beside this file where it runs
from starlette.requests import Request as StarletteRequest


def text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()


def parts(field: str) -> list[str]:
    return field.split(",") if field else []


def secrets_in(field: str) -> Any:
    """A secret stands behind ``=``, one of several behind a colon, anything else as JSON behind ``!``."""
    if field.startswith(("=", "!")):
        return text(field[1:]) if field[0] == "=" else json.loads(text(field[1:]))
    return [text(each[1:]) for each in parts(field)]


def verdict(secrets: Any, forms: list[tuple[Any, ...]], now: int) -> str:
    try:
        said = {verify(secrets, *form, now=now) for form in forms}
    except TypeError:
        return "refused"
    return str(said.pop()).lower() if len(said) == 1 else "not alike"


def forms_of(headers: list[tuple[str, str]]) -> list[Any]:
    """Gives headers as servers do: pairs, mappings, an environment, a scope, whole requests."""
    lists: dict[str, list[str]] = {}
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "wsgi.input": BytesIO(), "wsgi.version": (1, 0)}
    for name, value in headers:
        lists.setdefault(name, []).append(value)
        key = f"HTTP_{name.upper().replace('-', '_')}"
        environ[key] = f"{environ[key]},{value}" if key in environ else value
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "method": "POST", "path": "/", "headers": raw}
    forms: list[Any] = [headers, iter(headers), lists, environ, raw, scope]
    if len(lists) == len(headers):
        forms += [dict(headers), dict(headers).items()]
    if all(" " <= letter <= "~" for _, value in headers for letter in value):  # what a server lets through
        message = Message()
        for name, value in headers:
            message[name] = value
        of_django = HttpRequest()
        of_django.META = environ
        forms += [message, StarletteRequest(scope), FlaskRequest(environ), FlaskRequest(environ).headers]
        forms += [HttpHeaders(environ), of_django, make_mocked_request("POST", "/", message)]
    return forms


def taken(secrets: Any, headers: list[tuple[str, str]], body: bytes) -> list[str]:
    """Gives what was not refused, although it is no form of headers or of a body."""
    bodies: list[Any] = [None, body.decode("latin-1"), {}, 5]
    shapes: list[Any] = [None, 5, object(), "x-service: 1", ["x: y"], [1], [("x", 1, 2)], [(5, "x")]]
    shapes += [{"X-Service-Webhook-Timestamp": 1}, {"x-service-webhook-signature": None}]
    wrong = [*((headers, other) for other in bodies), *((other, body) for other in shapes)]
    said = []
    for form in wrong:
        try:
            said.append(f"{verify(secrets, *form)} for {form}")
        except TypeError as exc:
            said += [] if "must be" in str(exc) else [f"{exc} for {form}"]
    return said


def cases() -> None:
    django.conf.settings.configure()
    for line in sys.stdin.read().split("\n")[:-1]:
        now, secrets, pairs, encoded, events = line.split("\t")
        names_and_values = [pair.split(":") for pair in parts(pairs)]
        headers = [(text(name), text(value)) for name, value in names_and_values]
        body = base64.b64decode(encoded)
        both = (body, bytearray(body))
        forms: list[tuple[Any, ...]] = [(form, each) for each in both for form in forms_of(headers)]
        forms += [(event,) for event in json.loads(text(events))]
        said = verdict(secrets_in(secrets), forms, int(now))
        wrong = [] if said == "refused" else taken(secrets_in(secrets), headers, body)
        sys.stdout.write(f"{wrong[0] if wrong else said}\n")


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
