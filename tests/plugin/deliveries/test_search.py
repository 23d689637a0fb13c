from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import select

from flowactions_plugin.clock import id_at
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.insights import search as search_queries
from flowactions_plugin.insights.filters import BY_NAME, Filter, Term, parse
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.storage.schema import outbox
from tests.queueing import Queue
from tests.rings import sampled

ALL = Scope(None)
ACME = Scope("acme")
START = 1_600_000_000_000
LATER = 1 << 42
ROWS = 120


def an_id(number: int) -> str:
    return id_at(START + number * 1000)


def organization(number: int) -> str:
    return ("acme", "globex", "initech")[number % 3]


async def fill(queue: Queue) -> None:
    """Write rows of three organizations: some delivered, some dead, some that wait, of several destinations and nodes."""
    for number in range(ROWS):
        await queue.put(
            id=an_id(number),
            organization_id=organization(number),
            agent_id=f"agent-{number % 4}",
            destination=f"https://d{number % 5}.example.com:443",
            event_id=f"evt_{number % 40}",
            idempotency_key=f"k-{number % 30}" if number % 2 else None,
        )
    await queue.run(
        f"""UPDATE flowactions_outbox SET created_at = {START} + 1000 * (
            SELECT count(*) FROM flowactions_outbox o WHERE o.id < flowactions_outbox.id)"""  # noqa: S608
    )
    await queue.run(
        f"""UPDATE flowactions_outbox SET status = 'dead', finished_at = created_at, error_class =
            CASE WHEN (created_at / 1000) % 2 = 0 THEN 'timeout' ELSE 'http_5xx' END,
            last_status_code = CASE WHEN (created_at / 1000) % 2 = 0 THEN NULL ELSE 503 END, flow_id = 'f', node_id = 'n-1'
            WHERE (created_at - {START}) / 1000 % 7 = 0"""  # noqa: S608
    )
    await queue.run(
        f"""UPDATE flowactions_outbox SET status = 'delivered', finished_at = created_at
            WHERE status = 'pending' AND (created_at - {START}) / 1000 % 2 = 0"""  # noqa: S608
    )
    # Of those that wait, some wait for a retry, some are claimed, some are not due, and those of a destination are paused.
    for change, which in (
        ("status = 'retrying'", 3),
        ("claimed_by = 't', claimed_until = {later}", 5),
        ("next_attempt_at = {later}", 11),
    ):
        await queue.run(
            f"UPDATE flowactions_outbox SET {change.format(later=LATER)}"  # noqa: S608
            f" WHERE status IN ('pending', 'retrying') AND (created_at / 1000) % {which} = 0"
        )
    await queue.run(
        "INSERT INTO flowactions_pauses (organization_id, destination, paused_at, paused_by, reason)"
        " VALUES ('', 'https://d2.example.com:443', 1, 'Ann', '')"
    )


@pytest.fixture
async def filled(queue: Queue) -> Queue:
    await fill(queue)
    return queue


async def pages(queries: Insights, scope: Scope, wanted: Filter, limit: int = 7) -> list[Sequence[str]]:
    """Read all pages of a search."""
    found: list[Sequence[str]] = []
    before: str | None = None
    for _ in range(200):
        page = await queries.deliveries(scope, wanted, before, limit)
        found.append([row.id for row in page.rows])
        assert len(page.rows) <= limit
        before = page.next_cursor
        if before is None:
            assert page.looked_back_to is None
            return found
    raise AssertionError("there is no end")


SEARCHES: dict[str, Filter] = {
    "all": Filter(),
    "pending": Filter.of(status="pending"),
    "dead": Filter.of(status="dead"),
    "delivered": Filter.of(status="delivered"),
    "ids": Filter.of(id=(an_id(3), an_id(4), an_id(500))),
    "agent": Filter.of(agent="agent-2"),
    "agent that is dead": Filter.of(agent="agent-2", status="dead"),
    "destination": Filter.of(destination="https://d1.example.com:443"),
    "dead of a destination": Filter.of(destination="https://d0.example.com:443", status="dead"),
    "event": Filter.of(event="evt_7"),
    "key": Filter.of(key="k-3"),
    "key of a state": Filter.of(key="k-21", status="dead"),
    "flow": Filter.of(flow="f"),
    "node": Filter.of(flow="f", node="n-1"),
    "node without its flow": Filter.of(node="n-1"),
    "error": Filter.of(error="timeout"),
    "error of a destination": Filter.of(error="timeout", destination="https://d2.example.com:443"),
    "type": Filter.of(type="t"),
    "code": Filter.of(code=503),
    "code of a destination": Filter.of(code=503, destination="https://d0.example.com:443"),
    "of an organization": Filter.of(organization="globex", status="dead"),
    "time": Filter.of(since=START + 20_000, before=START + 60_000),
    "dead of a time": Filter.of(status="dead", since=START + 20_000),
    "error before": Filter.of(error="http_5xx", before=START + 90_000),
    "ended": Filter.of(ended_since=START + 50_000, ended_before=START + 70_000),
    "nothing": Filter.of(event="none"),
    "waiting": Filter.of(status="waiting"),
    "due": Filter.of(status="due"),
    "due or dead": Filter.of(status=("dead", "due")),
    "due or pending": Filter.of(status=("due", "pending", "waiting")),
    "all but dead": parse("-status:dead,delivered"),
    "due of a destination": Filter.of(status="due", destination="https://d0.example.com:443"),
    "states of destinations": Filter.of(status=("dead", "waiting"), destination=tuple(f"https://d{n}.example.com:443" for n in (0, 3))),
    "many destinations": Filter.of(destination=tuple(f"https://d{n}.example.com:443" for n in range(20))),
    "organizations": Filter.of(organization=("acme", "initech"), status="dead"),
    "no failure of these": parse("-error:timeout -agent:agent-1,agent-2"),
    "failures of several kinds": Filter.of(error=("timeout", "http_5xx")),
    "events": Filter.of(event=("evt_7", "evt_8")),
    "keys": Filter.of(key=("k-3", "k-5"), status="waiting"),
    "not of an organization": parse("-organization:acme status:dead"),
}  # fmt: skip


async def expected(queue: Queue, scope: Scope, wanted: Filter) -> list[str]:
    """Find the same by a scan of all rows."""
    async with queue.database.read() as connection:
        everything = (
            await connection.execute(select(outbox).order_by(outbox.c.organization_id, outbox.c.id.desc()))
        ).all()
    assert len(everything) == ROWS

    paused = {"https://d2.example.com:443"}

    def has(row: Any, term: Term) -> bool:
        field = BY_NAME[term.name]
        value = getattr(row, field.column)
        if field.edge:
            edge = term.values[0]
            return value is not None and (value >= edge if field.edge == "From" else value < edge)
        waits = row.status in {"pending", "retrying"}
        is_due = (
            waits
            and row.destination not in paused
            and row.claimed_until is None
            and row.next_attempt_at < LATER
        )
        states = {row.status, *(["waiting"] if waits else []), *(["due"] if is_due else [])}
        found = bool(states & {*term.values}) if term.name == "status" else value in term.values
        return found != term.excluded

    rows = [
        row.id
        for row in everything
        if scope.allows(row.organization_id) and all(has(row, each) for each in wanted.terms)
    ]
    return sorted(rows, reverse=True)


@sampled("window", [5000, 10], size=1)
async def test_a_search_finds_each_row_once_the_newest_first(
    filled: Queue, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    """Over all of its pages, in every scope, whether it reads back to the end at once or in several steps."""
    monkeypatch.setattr(search_queries, "READ_BACK", window)
    queries = Insights(filled.database)
    for name, wanted in SEARCHES.items():
        for scope in (ALL, ACME):
            found = [each for page in await pages(queries, scope, wanted) for each in page]
            assert found == await expected(filled, scope, wanted), (name, scope)


async def test_a_search_by_time_finds_rows_of_processes_whose_clocks_are_off(queue: Queue) -> None:
    """The id of a row may be up to a minute before or after its time of enqueue, which the database sets (decision 33)."""
    ids = [id_at(START + seconds * 1000) for seconds in (59, 0, -59)]
    for each in ids:
        await queue.put(id=each)
    await queue.run(f"UPDATE flowactions_outbox SET created_at = {START}")  # noqa: S608
    queries = Insights(queue.database)
    page = await queries.deliveries(ALL, Filter.of(since=START, before=START + 1), None, 50)
    assert [row.id for row in page.rows] == ids


async def test_a_search_says_how_far_it_has_looked_back(filled: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to there each row is found, whether it has failed or not, and nothing older is shown before its turn."""
    monkeypatch.setattr(search_queries, "READ_BACK", 10)
    queries = Insights(filled.database)
    wanted = Filter.of(destination="https://d0.example.com:443")
    page = await queries.deliveries(ACME, wanted, None, 50)
    assert page.looked_back_to is not None
    assert page.looked_back_to > START + 30_000
    since = id_at(page.looked_back_to)
    assert [row.id for row in page.rows] == [
        each for each in await expected(filled, ACME, wanted) if each >= since
    ]
    older = await queries.deliveries(ACME, wanted, page.next_cursor, 50)
    assert older.looked_back_to is not None
    assert older.looked_back_to < page.looked_back_to


async def test_an_event_is_found_however_old_it_is(filled: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delivered or not, with the first page: receivers ask by it."""
    monkeypatch.setattr(search_queries, "READ_BACK", 1)
    queries = Insights(filled.database)
    wanted = Filter.of(event="evt_0")
    page = await queries.deliveries(ALL, wanted, None, 50)
    assert page.next_cursor is None
    assert [row.id for row in page.rows] == await expected(filled, ALL, wanted)
    assert len(page.rows) > 1
    counted = await queries.count(ALL, wanted)
    assert (counted.number, counted.exact) == (len(page.rows), True)


async def test_another_organizations_rows_are_not_found(filled: Queue) -> None:
    """Whatever a principal asks for."""
    queries = Insights(filled.database)
    wanted = Filter.of(organization="globex")
    assert not (await queries.deliveries(ACME, wanted, None, 50)).rows
    assert (await queries.count(ACME, wanted)).number == 0
    assert await queries.delivery(ACME, an_id(1)) is None
    assert await queries.delivery(Scope("globex"), an_id(1)) is not None
    assert not (await queries.deliveries(ACME, Filter.of(id=(an_id(1),)), None, 50)).rows


@pytest.mark.parametrize("cursor", ["x", "-", "'; DROP TABLE", f"{an_id(1)}.{an_id(2)}", "\0", an_id(1) * 2])
async def test_a_cursor_that_is_none_is_refused(queue: Queue, cursor: str) -> None:
    """It comes from outside."""
    with pytest.raises(FilterInvalid) as raised:
        await Insights(queue.database).deliveries(ALL, Filter(), cursor, 50)
    assert raised.value.field == "cursor"


async def test_a_count_is_exact_up_to_its_limit(filled: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it, and where only some of the rows were read, it says that there are at least so many."""
    queries = Insights(filled.database)
    for name, wanted in SEARCHES.items():
        for scope in (ALL, ACME):
            counted = await queries.count(scope, wanted)
            assert (counted.number, counted.exact) == (len(await expected(filled, scope, wanted)), True), name
    counted = await queries.count(ALL, Filter(), 50)
    assert (counted.number, counted.exact, str(counted)) == (50, False, "50+")
    monkeypatch.setattr(search_queries, "COUNTED_BACK", 10)
    for name in ("destination", "delivered", "node without its flow", "pending", "error", "agent"):
        counted = await queries.count(ALL, SEARCHES[name])
        assert not counted.exact, name
        assert counted.number <= len(await expected(filled, ALL, SEARCHES[name])), name
