"""Records what the running software shows to the world, for the files beside this one.

``python -m tests.golden.record`` compares the recording with the files and prints the differences;
``--write`` writes the files anew. A change that is meant then shows as a diff of the files.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import hashlib
import hmac
import json
import logging
import re
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import httpx

from flowactions_conformance import demo as demo_module
from flowactions_conformance.demo import Demo, running_demo
from flowactions_conformance.serving import serve
from flowactions_conformance.walkthrough import call_in, connect_chat, walk_through
from tests.golden.tap import WireRequest, tap
from tests.waiting import until

HERE = Path(__file__).parent
SECRET = "a secret of the recording"
TIMED = {"flowactions_workers", "flowactions_statistics", "flowactions_destinations"}
"""Tables that are written every few seconds, if the recording takes so long, and with the machine's name."""

UNFINISHED = "SELECT count(*) FROM flowactions_outbox WHERE status IN ('pending', 'retrying')"
LOG_LINE = re.compile(r"chat_message node \S+ (?:sent|not sent: \w+)")
"""§6.3"""

LIBRARIES = {"provider.json": ("aiohttp", "slack-sdk"), "openapi.json": ("litestar",)}
"""Whose releases may change a file. It is compared with the release that it was written with."""

WEBHOOKS: list[dict[str, Any]] = [
    {"webhookUrl": "/hooks/get?a=%20b", "webhookMethod": "GET", "webhookSecret": SECRET, "webhookBody": "{}"},
    {
        "webhookUrl": "/hooks/no-body",
        "webhookHeaders": [{"key": "X-One", "value": "{{userId}}"}, {"value": "2"}],
    },
    {
        "webhookUrl": "/hooks/reserved",
        "webhookMethod": "PUT",
        "webhookHeaders": [
            {"key": "Host", "value": "elsewhere"},
            {"key": "User-Agent", "value": "another"},
            {"key": "x-service-webhook-id", "value": "mine"},
            {"key": "Content-Type", "value": "application/vnd.example+json"},
            {"key": "not a name", "value": "1"},
            {"key": "X-Umlaut", "value": "ä {{content}}"},
        ],
        "webhookBody": '{ "n": 1.10, "text": "\\u00e4: {{content}}", "{{userId}}": {{userId}} }',
        "webhookSecret": SECRET,
    },
    {"webhookUrl": "/hooks/status/404/once", "webhookBody": "[]"},
    {"webhookUrl": "/hooks/status/302/redirect", "webhookBody": "null", "webhookMethod": "DELETE"},
    {"webhookUrl": "", "webhookBody": "{}"},
    {"webhookUrl": "http://169.254.169.254/latest", "webhookBody": "{}"},
    {"webhookUrl": "/hooks/invalid", "webhookBody": "{", "webhookContinueOnFailure": False},
]
MESSAGES: list[dict[str, Any]] = [
    {"chatActionType": "dm", "chatUserId": "U000GRACE", "chatMessageText": " <b> {{content}} {{other}} "},
    {"chatChannelId": "C00ORDERS", "chatMessageText": "  {{content}}"},
    {"chatMessageText": "nowhere"},
    {"chatChannelId": "C00ORDERS", "chatMessageText": "   "},
    {"chatChannelId": "C00RANDOM", "chatMessageText": "not a member", "chatContinueOnFailure": False},
]


class Names:
    """Replaces what differs from run to run, the same value by the same name wherever it stands."""

    def __init__(self, literal: dict[str, str]) -> None:
        self._literal = dict(sorted(literal.items(), key=lambda item: -len(item[0])))
        self._seen: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    PATTERNS = (
        ("event", r"evt_[0-9a-f]{64}"),
        ("start", r"evt_[0-9a-f]{12}(?=…)"),
        ("id", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
        ("token", r"xoxb-[0-9a-f]+"),
        ("time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)"),
        ("ts", r"\b1\d{9}\.\d{6}\b"),
        ("ms", r"\b1\d{12}\b"),
        ("s", r"\b1\d{9}\b"),
        ("hex", r"\b[0-9a-f]{32}\b"),
        ("library", r"Python/\S+ slackclient/\S+ \S+"),
    )
    UNNUMBERED = frozenset({"start", "time", "ts", "ms", "s", "library"})

    def __call__(self, text: str) -> str:
        """Give a text with names in place of ids, times, ports and versions."""
        for value, name in self._literal.items():
            text = text.replace(value, name)
        pattern = "|".join(f"(?P<{name}>{regex})" for name, regex in self.PATTERNS)
        return re.sub(pattern, self._name, text)

    def within(self, value: Any) -> Any:
        """Give a JSON value with names in all its texts and numbers."""
        if isinstance(value, dict):
            return {key: self.within(each) for key, each in value.items()}
        if isinstance(value, list):
            return [self.within(each) for each in value]
        if isinstance(value, str):
            return self(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self(str(value)) if value > 1_000_000_000 else value
        return value

    def _name(self, match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        if kind in self.UNNUMBERED:
            return f"<{kind}>"
        if match[0] not in self._seen:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._seen[match[0]] = f"<{kind} {self._counts[kind]}>"
        return self._seen[match[0]]


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def record() -> dict[str, str]:
    """Run the demo and further nodes; give the text of each golden file."""
    wires: list[list[WireRequest]] = []

    @asynccontextmanager
    async def tapped(app: Any, listener: Any = None) -> AsyncIterator[str]:
        async with serve(app, listener) as url:
            if listener is not None:  # the host itself
                yield url
                return
            wires.append([])
            async with tap(urlsplit(url).port or 0, wires[-1]) as port:
                yield f"http://127.0.0.1:{port}"

    log = logging.getLogger("flowactions")
    lines, level = _Lines(), log.level
    log.addHandler(lines)
    log.setLevel(logging.INFO)
    try:
        with (
            tempfile.TemporaryDirectory() as name,
            mock.patch.multiple(demo_module, serve=tapped, TICK_SECONDS="0.05"),
        ):
            async with running_demo({}, Path(name)) as demo:
                database = sqlite3.connect(f"file:{name}/reference-host.db?mode=ro", uri=True)
                try:
                    said, results = await _walk(demo, database)
                    tables = dict(_tables(database))
                finally:
                    database.close()
                async with httpx.AsyncClient(base_url=demo.host_url, trust_env=False, timeout=300) as client:
                    document = (await client.get("/schema/openapi.json")).json()
    finally:
        log.removeHandler(lines)
        log.setLevel(level)
    provider, receiver = wires
    names = Names(_literal(demo))
    run = {
        "said": [names(line) for line in said],
        "results": names.within(results),
        "receiver": [_shown(request, names, demo) for request in receiver],
        "log": [line for line in lines.lines if LOG_LINE.fullmatch(line)],
        "tables": names.within(tables),
    }
    calls = [_shown(request, names, demo) for request in provider if "/api/" in request.line]
    return {
        "demo_run.json": _text(run),
        "provider.json": _text(calls),
        "openapi.json": _text(names.within(document), sort=True),
    }


async def _walk(demo: Demo, database: sqlite3.Connection) -> tuple[list[str], list[dict[str, Any]]]:
    said: list[str] = []
    arrivals, provider = demo.receiver.arrivals, demo.provider
    assert provider is not None
    await walk_through(demo.host_url, demo.dashboard_token, arrivals, provider.messages, said.append)
    await call_in(demo.host_url, demo.dashboard_token, demo.api_token, demo.auth_secret, arrivals, said.append)
    results = []
    headers = {"authorization": f"Bearer {demo.dashboard_token}"}
    async with httpx.AsyncClient(
        base_url=demo.host_url, headers=headers, trust_env=False, timeout=300
    ) as client:
        for config in WEBHOOKS:
            url = config["webhookUrl"]
            full = f"{demo.receiver_url}{url}" if url.startswith("/") else url
            results += await _open(client, "webhook", {**config, "webhookUrl": full})
            await until(lambda: database.execute(UNFINISHED).fetchone() == (0,))
        for config in MESSAGES:
            results += await _open(client, "chat_message", config)
        (await client.delete("/integrations/chat/connection")).raise_for_status()
        results += await _open(client, "chat_message", MESSAGES[1])
        await connect_chat(demo.host_url, demo.dashboard_token)
    return said, results


async def _open(client: httpx.AsyncClient, kind: str, config: dict[str, Any]) -> list[dict[str, Any]]:
    """Save a flow with one node, open it, and give the node's results."""
    item = {"id": "the-node", "kind": "action", "type": kind, "config": config}
    flow = {"name": kind, "agentId": "acme-support", "kind": "single_shot", "items": [item]}
    flow_id = uuid4().hex
    saved = await client.put(f"/api/flows/{flow_id}", json=flow, headers={"if-none-match": "*"})
    saved.raise_for_status()
    opened = await client.post(
        f"/run/flows/{flow_id}/open", json={"userId": "u<1>", "content": 'say "hi" & go'}
    )
    opened.raise_for_status()
    runs = (await client.get(f"/api/flows/{flow_id}/runs")).json()["data"]
    found: list[dict[str, Any]] = runs[0]["results"]
    return found


def _literal(demo: Demo) -> dict[str, str]:
    return {
        demo.host_url: "<host>",
        demo.receiver_url: "<receiver>",
        str(demo.provider_url): "<provider>",
        **{
            str(urlsplit(url).netloc): f"<{name}>"
            for name, url in [("receiver", demo.receiver_url), ("provider", str(demo.provider_url))]
        },
        demo.dashboard_token: "<dashboard token>",
        demo.api_token: "<api token>",
    }


def _shown(request: WireRequest, names: Names, demo: Demo) -> dict[str, Any]:
    by_name = {name.lower(): value for name, value in request.headers}
    body = names(_body(request, by_name))
    headers = []
    for name, value in request.headers:
        shown = names(_value(name, value, by_name, request, demo))
        if name.lower() == "content-length" and body != request.body.decode():
            shown = "<length of the body>"
        headers.append(f"{name}: {shown}")
    return {"line": names(request.line), "headers": headers, "body": body}


def _body(request: WireRequest, by_name: dict[str, str]) -> str:
    if by_name.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        # The code of an install is new each time.
        return unquote(re.sub(r"\bcode=[^&]+", "code=<code>", request.body.decode()))
    return request.body.decode()


def _value(name: str, value: str, by_name: dict[str, str], request: WireRequest, demo: Demo) -> str:
    """Give a header's value; in place of a signature, whose secret verifies it."""
    if name.lower() == "x-service-webhook-signature":
        signed = f"{by_name['x-service-webhook-timestamp']}.".encode() + request.body
        for secret, whose in ((demo.receiver._secret, "the sample's"), (SECRET, "the recording's")):
            if value == f"v1,{hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}":
                return f"v1,<HMAC-SHA256 of timestamp.body with {whose} secret>"
        return "v1,<WRONG>"
    if name.lower() == "accept-encoding":
        return "<what the library can decode>"
    return value


def _tables(database: sqlite3.Connection) -> Iterable[tuple[str, list[dict[str, Any]]]]:
    """Give every row of the plugin's tables, in the order in which they were written."""
    database.row_factory = sqlite3.Row
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'flowactions_%' ORDER BY name"
    for (table,) in database.execute(query).fetchall():
        if "alembic" in table or "version" in table or table in TIMED:
            continue
        rows = database.execute(f'SELECT * FROM "{table}" ORDER BY rowid').fetchall()  # noqa: S608  own tables
        yield table, [{key: _cell(key, row[key]) for key in row.keys()} for row in rows]  # noqa: SIM118


def _cell(column: str, value: Any) -> Any:
    if value is None:
        return None
    if column in {"sealed_token", "browser", "worker", "lane"}:  # of the lane, a port is a part
        return f"<{column}>"
    if column == "id" and isinstance(value, str) and not re.fullmatch(r"[0-9a-f-]{36}", value):
        return "<id>"
    if column.endswith("duration_ms") or column == "phases":
        return "<ms>"
    return value.decode() if isinstance(value, bytes) else value


def _text(value: Any, *, sort: bool = False) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, sort_keys=sort) + "\n"


def releases() -> dict[str, str]:
    """Give the installed release, major and minor, of each library that can change a file."""
    names = sorted({name for libraries in LIBRARIES.values() for name in libraries})
    return {name: ".".join(version(name).split(".")[:2]) for name in names}


def of_other_releases() -> dict[str, str]:
    """Give, by file, the libraries whose installed release is not the one that the file was written with."""
    written: dict[str, str] = json.loads((HERE / "releases.json").read_text())
    other = {name: installed for name, installed in releases().items() if written.get(name) != installed}
    return {
        file: ", ".join(f"{name} {other[name]}" for name in libraries if name in other)
        for file, libraries in LIBRARIES.items()
        if other.keys() & set(libraries)
    }


def differences(recorded: dict[str, str]) -> dict[str, str]:
    """Give what differs between the files and a recording: by file, a diff."""
    found = {}
    for name, text in recorded.items():
        path = HERE / name
        old = path.read_text().splitlines() if path.exists() else []
        new = text.splitlines()
        if old != new:
            diff = difflib.unified_diff(old, new, f"tests/golden/{name}", "now", lineterm="")
            found[name] = "\n".join(diff)
    return found


def main() -> int:
    """Run the command; give its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden.record", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files anew")
    options = parser.parse_args()
    recorded = asyncio.run(record())
    found = differences(recorded)
    sys.stdout.write("\n".join(found.values() or ["nothing differs"]) + "\n")
    if options.write:
        for name, text in recorded.items():
            (HERE / name).write_text(text)
        (HERE / "releases.json").write_text(_text(releases()))
        return 0
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
