"""Rows that hold what nobody would write: pages show it as text, and none of them fails."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

from tests.plugin.pages.conftest import Site

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
    room = {"event_type": 64, "event_id": 68, "idempotency_key": 200, "method": 32}
    for column in COLUMNS:
        cut = value[: room.get(column, 10_000)]
        await site.execute(f"UPDATE flowactions_outbox SET {column} = :value", value=cut)  # noqa: S608
    await site.execute(
        "INSERT INTO flowactions_attempts VALUES (:id, 1, 1700000000000, 5, NULL, :value, :response, :phases, :worker)",
        id=row_id,
        value=value,
        response=value.encode(),
        phases=json.dumps({value: 5}),
        worker=value[:8],
    )
    await site.execute(
        "INSERT INTO flowactions_audit (id, at, organization_id, actor_id, actor_name, actor_role, action, delivery_id,"
        " reason, filter) VALUES (:id, 1, :value, :value, :value, 'x', 'retry', :delivery, :value, :value)",
        id="00000000-0000-7000-8000-000000000001",
        value=value,
        delivery=row_id,
    )
    await site.execute(
        "INSERT INTO flowactions_pauses (organization_id, destination, paused_at, paused_by, reason)"
        " VALUES (:value, :value, 1, :value, :value)",
        value=value,
    )
    await site.execute(
        "INSERT INTO flowactions_inbound_events VALUES ('svix', :value, 1700000000000, :value, 1, 1)",
        value=value,
    )
    await site.execute(
        "INSERT INTO flowactions_inbound_requests VALUES ('svix', 'failed', :value, 1, 1, 1, :value, :value, 500, :value)",
        value=value,
    )
    await site.execute(
        "INSERT INTO flowactions_chat_connections (organization_id, team_id, team_name, bot_user_id, app_id, scopes,"
        " installed_by_id, installed_by_name, installed_at, install_id, status, status_reason, sealed_token) VALUES (:value, :value,"
        " :value, '', '', '', :value, :value, 1, 'i', 'revoked', :value, :sealed)",
        value=value,
        sealed=b"x",
    )
    await site.execute(
        "INSERT INTO flowactions_workers (id, name, version, host_name, pid, mode, slots, delivery_timeout, in_flight, started_at, last_seen_at, last_claim_at,"
        " stopped_at, clock_ahead_ms, limited) VALUES ('w', :value, :value, :value, 1, 'x', 1, 10, 1, 1, 1, NULL, NULL, 1, :value)",
        value=value,
    )
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


@pytest.mark.parametrize(
    "query",
    [
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
    ],
)
async def test_what_a_query_holds_is_shown_as_text(site: Site, query: str) -> None:
    """Or refused with a 400 that says what is allowed."""
    answer = await site.get(f"/deliveries{query}")
    assert answer.status_code in {200, 400}, answer.text
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
