"""Bulk actions whose workers are killed: each row is changed once, and the action goes on."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import msgspec
import pytest

from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Action
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.bulk import SERIES
from tests.crash.workers import Field
from tests.queueing import ORIGIN
from tests.recorder import OK
from tests.waiting import until

pytestmark = pytest.mark.ci

OPERATOR = Actor("root", "Op", "operator")
GONE = b"HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n"


@pytest.fixture
def field(field: Field) -> Field:
    limits = {"FLOWACTIONS_CONCURRENCY": "100", "FLOWACTIONS_DESTINATION_LIMIT": "100"}
    field.settings.update(FLOWACTIONS_DELIVERY="continuous", **limits)
    return field


async def put_dead(field: Field, database: Database, rows: int) -> None:
    """Write so many rows that died a while ago, at their fifth attempt."""
    series, row_id, source = SERIES[database.dialect]
    url, day_ago = field.receiver.url, int(time.time() - 86_400) * 1000
    origin = msgspec.json.encode(ORIGIN).decode().replace(":", "\\:")
    await field.run(
        f"""
        INSERT INTO flowactions_outbox (id, organization_id, agent_id, origin, event_id, event_type, url, destination, lane,
            method, headers, body, status, attempts, earlier_attempts, max_attempts, next_attempt_at, takeovers,
            created_at, updated_at, finished_at, error_class)
        {series.format(rows=rows)}
        SELECT {row_id}, 'acme', 'a', '{origin}', 'evt_' || i, 't', '{url.replace(":", chr(92) + ":")}',
            '{url.rpartition("/")[0].replace(":", chr(92) + ":")}',
            1, 'POST', '[["x-service-webhook-id", "evt_' || i || '"]]', NULL, 'dead',
            5, 0, 5, {day_ago}, 0, {day_ago}, {day_ago}, {day_ago} + i, 'http_5xx'
        FROM {source.format(rows=rows)}"""  # noqa: S608  numbers, and the receiver's URL
    )


async def progress(database: Database, action: Action) -> Action:
    found = await Insights(database).action(Scope(None), action.id)
    assert found is not None
    return found


async def ended(field: Field, database: Database, action: Action) -> int:
    """Wait until an action is done and all that waits is delivered; give how many rows it has changed."""

    async def is_done() -> bool:
        return (await progress(database, action)).state == "done"

    await until(is_done)
    await until(field.drained)
    return (await progress(database, action)).done


@pytest.mark.parametrize(
    ("rows", "rate"),
    [(1000, 300.0), pytest.param(100_000, 1500.0, marks=pytest.mark.long)],
)
async def test_a_replay_that_is_killed_three_times_replays_each_row_once(
    field: Field, rows: int, rate: float
) -> None:
    """In the middle of a batch, after it, and anywhere: what dies again is not replayed again."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": field.url}).database_url
    async with Database(url) as database:
        await put_dead(field, database, rows)
        # One row in ten dies again at once: were it replayed again, it would arrive twice.
        field.receiver.answer = lambda number: (
            GONE if field.receiver.requests[-1].header("x-service-webhook-id").endswith("7") else OK
        )
        actions = Operations(database)
        preview = await actions.preview(Scope(None), "retry", Filter.of(organization="acme"))
        assert preview.count == rows
        action = await actions.change(Scope(None), preview.chosen, OPERATOR, "receiver is back", rate=rate)
        assert action is not None
        may_repeat: Counter[str] = Counter()
        for kill in ("acting:2", "acted:2", ""):
            process = await field.start(kill)
            if not kill:
                wanted = (await progress(database, action)).done + rows // 5

                async def is_halfway(wanted: int = wanted) -> bool:
                    return (await progress(database, action)).done >= wanted

                await until(is_halfway)
                os.kill(process.pid, signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL, field.logs()
            may_repeat.update(await field.in_flight())
            found = await progress(database, action)
            assert (found.state, found.done < rows) == ("running", True)
        await field.start()
        assert await ended(field, database, action) == rows
    assert await field.states() == {"delivered": rows * 9 // 10, "dead": rows // 10}
    (attempts,) = await field.query("SELECT min(attempts), max(attempts) FROM flowactions_outbox")
    assert tuple(attempts) == (6, 6)
    arrivals = field.arrivals()
    assert len(arrivals) == rows
    repeated = arrivals - Counter(list(arrivals))
    assert not repeated - may_repeat
