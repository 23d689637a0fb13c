"""Rows that hold what nobody would write: pages show it as text, and none of them fails."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from sqlalchemy import insert, update

from flowactions_plugin.storage import schema
from flowactions_plugin.storage.schema import outbox
from tests.plugin.pages.conftest import Site
from tests.plugin.stored import a_row

ID, NOW = "00000000-0000-7000-8000-000000000001", 1_700_000_000_000

MARKUP = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7*7 }}{% raw %}\'"`'
UNSEEN = "a\u202eb\x1b[31mc\u200b"
TEXTS = [MARKUP, UNSEEN, "x" * 5000, "javascript:alert(1)", ""]
COLUMNS = (
    "event_type",
    "url",
    "destination",
    "method",
    "agent_id",
    "event_id",
    "last_error",
    "idempotency_key",
    "flow_id",
    "node_id",
    "headers",
    "origin",
)


class Elements(HTMLParser):
    """Collects elements and attributes, and counts the cells of each row of each table."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts: list[str | None] = []
        self.links: list[str] = []
        self.tables: list[list[int]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append(0)
        elif tag in {"td", "th"}:
            self.tables[-1][-1] += int(dict(attrs).get("colspan") or 1)
        self.links += [value or "" for name, value in attrs if name in {"href", "action"}]


def check(text: str) -> None:
    page = Elements()
    page.feed(text)
    assert not page.tags & {"img", "iframe", "object", "style", "b"}
    assert not [name for name in page.attributes if name.startswith("on") or name == "style"]
    assert all(len(set(cells)) <= 1 for cells in page.tables)  # each row has each column
    assert len(page.scripts) == 1
    assert str(page.scripts[0]).rpartition("/")[2].startswith("script.")
    assert not [link for link in page.links if re.match(r"(?!data:,)[a-z]+:", link)]
    seen = re.sub(r' value="[^"]*"', "", text)  # which forms send back as they are
    assert not set(seen) & {"\u202e", "\x1b", "\u200b", "\x00"}


@pytest.mark.parametrize("value", TEXTS, ids=["markup", "unseen", "long", "script", "empty"])
async def test_what_rows_hold_is_shown_as_text(site: Site, value: str) -> None:
    """In lists, in single deliveries, in previews, for operators; nothing of it becomes an element or a link."""
    site.sign_in("operator")
    row_id = await site.put("dead", organization_id=value or "acme", body=value.encode())
    texts = {column: value[: getattr(outbox.c[column].type, "length", None)] for column in COLUMNS}
    await site.queue.run(update(outbox).values(texts))
    for table, known in (
        (schema.attempts, {"delivery_id": row_id, "started_at": NOW, "phases": json.dumps({value: 5})}),
        (schema.audit, {"id": ID, "delivery_id": row_id, "action": "retry", "action_id": None}),
        (schema.pauses, {"probe_at": None}),
        (schema.inbound_events, {"provider": "svix", "received_at": NOW}),
        (schema.inbound_requests, {"provider": "svix", "result": "failed", "status_code": 500}),
        (schema.chat_connections, {"status": "revoked"}),
        (schema.workers, {"mode": "x", "last_claim_at": None, "stopped_at": None}),
    ):
        await site.queue.run(insert(table).values(a_row(table, value, known, whole=True)))
    for path in (
        "",
        "/deliveries",
        f"/deliveries/{row_id}",
        "/actions/new?kind=delete",
        "/destinations",
        "/connections",
        "/inbound",
        "/audit",
    ):
        answer = await site.get(path)
        assert answer.status_code == 200, (path, answer.text[-600:])
        check(answer.text)


QUERIES = (
    "?destination=%22%3E%3Cscript%3E",
    "?key=%3Cscript%3Ealert(1)%3C/script%3E",
    "?from=tomorrow",
    "?status=gone",
    "?nothing=1",
    "?status=dead&status=dead",
    "?key=%00",
    "?key=%ff",
    "?cursor=%3Cb%3E",
    "?id=" + "x" * 50_000,
)


async def test_what_a_query_holds_is_shown_as_text(site: Site) -> None:
    """Or refused with a 400 that says what is allowed."""
    for query in QUERIES:
        answer = await site.get(f"/deliveries{query}")
        assert answer.status_code in {200, 400}, (query, answer.text)
        check(answer.text)


async def test_credentials_are_masked(site: Site) -> None:
    """In the URL, in headers, and in the command that is copied."""
    row_id = await site.put(
        "dead", headers=(("authorization", "Bearer geheim"), ("x-api-key", "geheim"), ("x-trace", "shown"))
    )
    await site.execute("UPDATE flowactions_outbox SET url = 'https://example.com/h?token=geheim&a=shown'")
    text = (await site.get(f"/deliveries/{row_id}")).text
    assert ("geheim" in text, text.count("shown") >= 4) == (False, True)
    assert "geheim" not in (await site.get("/deliveries")).text
