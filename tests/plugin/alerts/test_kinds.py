"""What alerts say, when they are queued, and of how many workers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import func, select, update

from flowactions_hookspecs import DeliveryAlert, FlowNodeOrigin
from flowactions_plugin.alerts import watch
from flowactions_plugin.alerts.events import KINDS, DestinationRecovered
from flowactions_plugin.alerts.watch import WINDOW_MS, AlertWatch
from flowactions_plugin.egress.attempt import Aborted, Message, Outcome
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.purge import Purge
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.rules import NewDelivery, event_id
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import (
    EVERY_ORGANIZATION,
    installation,
    outbox,
    statistics,
)
from flowactions_plugin.watch.statistics import Counts
from flowactions_plugin.watch.statistics_store import add_counts
from tests.alerting import SECRET, alerts_in, an_alert, bodies, examples, queued, shape
from tests.outages import refuse
from tests.plugin.stored import a_dead_one
from tests.queueing import ORIGIN, Queue

OPERATOR = Actor("root", "Op", "operator")
HOOKS = "https://hooks.example.com:443"


class Watched:
    """The look-out of one worker, and what it sent at once."""

    def __init__(self, database: Database) -> None:
        self.sent: list[NewDelivery] = []
        self.answers = 200
        self.watch = AlertWatch(alerts_in(database), database, self._send)
        self.look = self.watch.look

    async def _send(self, message: Message, secret: str) -> Outcome | Aborted:
        assert secret == SECRET
        assert isinstance(message, NewDelivery)
        self.sent.append(message)
        return Outcome(0, 0, self.answers) if self.answers else Aborted("host", "it is away")


async def dead(
    queue: Queue, number: int, ago: int = WINDOW_MS + 60_000, at: int | None = None, **changes: Any
) -> None:
    """Have rows end without success, so many milliseconds ago or at a time."""
    at = int(await queue.database.time() * 1000) - ago if at is None else at
    for _ in range(number):
        await a_dead_one(queue, state={"finished_at": at}, **changes)


def counts(failures: int = 0, *, succeeded: bool = False, gone: int = 0) -> Counts:
    """Give what attempts came to."""
    made = Counts()
    made.failed = made.failures_in_row = failures
    made.delivered, made.succeeded = int(succeeded), succeeded
    made.last_error = "http_5xx" if failures else None
    if gone:
        made.gone[ORIGIN] = gone
    return made


async def test_each_kind_is_as_its_guide_shows_it(queue: Queue) -> None:
    """All names and kinds of values of each example are those of what is really queued or sent."""
    database = queue.database
    alerts, watched = alerts_in(database), Watched(database)
    add = partial(add_counts, database, since=0.0, queue_alerts=alerts.of_destinations)
    await add({("acme", HOOKS): counts(20)})
    await add({("acme", HOOKS): counts(succeeded=True)})
    await add({("acme", HOOKS): counts(1, gone=3)})
    await Operations(database).pause(Scope("acme"), HOOKS, OPERATOR)
    await Operations(database).resume(Scope("acme"), HOOKS, OPERATOR)
    await dead(queue, 1)
    refuse(database, "its disk is full")
    await watched.look()
    refuse(database, None)
    await watched.look()
    found = [msgspec.json.decode(each.body or b"") for each in watched.sent] + await bodies(database)
    assert {each["type"]: shape(each) for each in found} == {
        name: shape(example) for name, example in examples().items()
    }
    assert len(found) == len(KINDS) == len(examples())
    gone = next(each for each in found if each["type"].endswith("gone"))
    assert msgspec.convert(gone["data"]["origin"], FlowNodeOrigin) == ORIGIN


async def test_dead_deliveries_of_a_window_are_one_alert(queue: Queue) -> None:
    """With their number and the largest groups; not of those that somebody has cancelled, of alerts, and of later ones."""
    watched = Watched(queue.database)
    await dead(queue, 3)
    await dead(queue, 1, organization_id="globex")
    await dead(queue, 1, organization_id=EVERY_ORGANIZATION, event_id="evt_alert")
    await dead(queue, 1, ago=-WINDOW_MS)
    await dead(queue, 1, ago=45 * 60_000)  # another worker may have told that, and its key be forgotten
    row = await queue.put()
    assert await queue.queries.cancel(row, "acme", "no more")
    since = int(await queue.database.time() * 1000) - WINDOW_MS - 60_000
    await queue.run(update(outbox).where(outbox.c.id == row).values(finished_at=since))
    for _ in range(2):
        await watched.look()
    (alert,) = [each["data"] for each in await bodies_of(queue.database, "flowactions.deliveries.dead")]
    assert (alert["deliveries"], alert["exact"]) == (4, True)
    assert [(each["organizationId"], each["deliveries"]) for each in alert["groups"]] == [
        ("acme", 3),
        ("globex", 1),
    ]


async def bodies_of(database: Database, event_type: str) -> Sequence[dict[str, Any]]:
    """Give the queued alerts of a type; not the rows that a test has put beside them."""
    rows = [row for row in await queued(database) if row.event_type == event_type]
    return [msgspec.json.decode(row.body) for row in rows]


@pytest.mark.ci
async def test_more_dead_deliveries_than_are_read_are_said_to_be_more(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number is what was read, and not exact."""
    monkeypatch.setattr(watch, "DEAD_READ", 2)
    await dead(queue, 3)
    await Watched(queue.database).look()
    (alert,) = await bodies_of(queue.database, "flowactions.deliveries.dead")
    assert (alert["data"]["deliveries"], alert["data"]["exact"]) == (2, False)


async def test_of_several_workers_one_queues_an_alert(queue: Queue) -> None:
    """Whatever they find at once, and whenever one of them starts; what a destination is in the end is told last."""
    await dead(queue, 2)
    pauses = Operations(queue.database)
    await pauses.pause(Scope(), HOOKS, OPERATOR)
    await pauses.resume(Scope(), HOOKS, OPERATOR)
    await pauses.pause(Scope(), HOOKS, OPERATOR)
    workers = [Watched(queue.database) for _ in range(3)]
    await asyncio.gather(*(each.look() for each in workers))
    await Watched(queue.database).look()
    rows = await queued(queue.database)
    assert sorted(row.event_type for row in rows) == [
        "flowactions.deliveries.dead",
        "flowactions.destination.paused",
        "flowactions.destination.paused",
        "flowactions.destination.resumed",
    ]
    assert rows[-1].event_type == "flowactions.destination.paused"
    paused, again = await bodies_of(queue.database, "flowactions.destination.paused")
    assert again["data"]["occurredAt"] >= paused["data"]["occurredAt"]
    assert (paused["data"]["organizationId"], paused["data"]["pausedBy"]) == (None, "operator")
    assert {row.max_attempts for row in rows} == {10}


@pytest.mark.ci
async def test_pauses_beyond_those_that_are_read_at_once_are_alerts_too(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one look leaves, the next one finds."""
    monkeypatch.setattr(watch, "PAUSES_READ", 2)
    for number in range(5):
        await Operations(queue.database).pause(Scope("acme"), f"https://{number}.example.com", OPERATOR)
        await asyncio.sleep(0.002)  # ids of the next millisecond
    watched = Watched(queue.database)
    for _ in range(6):
        await watched.look()
    paused = {each["data"]["destination"] for each in await bodies(queue.database)}
    assert len(paused) == 5


async def test_what_a_destination_ends_by_410_is_one_alert_an_hour(queue: Queue) -> None:
    """Of each organization, however many workers and writes tell of it."""
    alerts = alerts_in(queue.database)
    add = partial(add_counts, queue.database, since=0.0, queue_alerts=alerts.of_destinations)
    alerts._outbox.database.clock = lambda: 1_800_000_000.0  # not at the end of an hour
    for _ in range(3):
        await add({("acme", HOOKS): counts(1, gone=1), ("globex", HOOKS): counts(1, gone=1)})
    assert sorted(each["data"]["organizationId"] for each in await bodies(queue.database)) == [
        "acme",
        "globex",
    ]


async def test_alerts_own_destination_makes_no_alert(queue: Queue) -> None:
    """Neither its failure nor its recovery; its sums are counted once."""
    add = partial(add_counts, queue.database, since=0.0, queue_alerts=alerts_in(queue.database).of_destinations)
    for counted in (counts(30, gone=1), counts(succeeded=True)):
        found = await add({(EVERY_ORGANIZATION, HOOKS): counted})
        assert found  # the log says it
    assert await queued(queue.database) == []
    async with queue.database.read() as connection:
        sums = select(func.sum(statistics.c.failed)).where(statistics.c.destination == "")
        assert (await connection.execute(sums)).scalar_one() == 30


async def test_an_alert_and_what_it_is_about_are_written_together(queue: Queue) -> None:
    """Where the alert cannot be written, the destination counts as not told."""

    async def fails(*_: object) -> None:
        raise RuntimeError

    add = partial(add_counts, queue.database, since=0.0, queue_alerts=fails)
    with pytest.raises(RuntimeError):
        await add({("acme", HOOKS): counts(20)})
    alerts = alerts_in(queue.database)
    await add_counts(queue.database, {("acme", HOOKS): counts(20)}, 0.0, alerts.of_destinations)
    assert [each["data"]["failures"] for each in await bodies(queue.database)] == [20]


async def test_a_purge_removes_the_alerts_that_name_the_organization(queue: Queue) -> None:
    """Wherever they name it, and no others, such as those of an organization whose id begins alike."""
    alerts = alerts_in(queue.database)
    for organization in ("acme", "acme2", 'a"c'):
        failing = DeliveryAlert(organization_id=organization, destination=HOOKS, kind="recovered")
        async with queue.database.write() as transaction:
            await alerts.of_destinations(transaction, [failing])
    await dead(queue, 1)
    await Watched(queue.database).look()
    assert (await Purge(queue.database, "acme").count())["alerts"] == 2
    assert (await Purge(queue.database, "acme").run(OPERATOR))["alerts"] == 2
    assert [each["data"]["organizationId"] for each in await bodies(queue.database)] == ["acme2", 'a"c']


@pytest.mark.ci
async def test_an_alert_that_is_too_large_stops_nothing(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and left out."""
    alerts = alerts_in(queue.database, FLOWACTIONS_MAX_BODY_BYTES="1024")
    assert await alerts.add(an_alert(organization_id="x" * 2000)) is None
    assert [record.event for record in caplog.records] == ["alert.not_queued"]  # type: ignore[attr-defined]
    assert await queued(queue.database) == []


async def test_an_event_id_is_that_of_the_key(queue: Queue) -> None:
    """Bodies of one event may differ in their times; without a key, each alert is an event of its own."""
    alerts = alerts_in(queue.database)
    one, two, *others = [
        (await alerts.delivery(an_alert(at), key)).event_id
        for at, key in (("1", "k"), ("2", "k"), ("1", None), ("1", None))
    ]
    async with queue.database.read() as connection:
        made_with_the_tables = (await connection.execute(select(installation.c.id))).scalar_one()
    assert one == two == event_id(DestinationRecovered.TYPE, f"{made_with_the_tables}:k", b"")
    assert len({one, *others}) == 3


async def test_alerts_of_two_installations_are_different_events(tmp_path: Path) -> None:
    """Staging and production send to one URL: what both report of the same time is two events there."""
    found = []
    for name in ("staging", "production"):
        url = read_settings({"FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / name}.db"}).database_url
        async with Database(url) as database:
            watched = Watched(database)
            refuse(database, "its disk is full")
            await watched.look()
            (message,) = watched.sent
            found.append(message.event_id)
    assert len(set(found)) == 2


async def test_each_outage_of_writes_is_an_event_whose_end_is_told(queue: Queue) -> None:
    """Also within a minute, whichever workers notice them: the last alert says how the database is."""
    workers = [Watched(queue.database) for _ in range(3)]
    *two, late = workers

    async def look(*watched: Watched, refusal: str | None) -> None:
        refuse(queue.database, refusal)
        await asyncio.gather(*(each.look() for each in watched))

    for number in (1, 2):
        await look(*two, refusal="its disk is full")
        await look(*two, refusal="its disk is full")
        if number == 1:
            await look(late, refusal="its disk is full")
        sent = [[message.event_id for message in each.sent] for each in two]
        assert sent[0] == sent[1]
        assert len(set(sent[0])) == len(sent[0]) == number
        await look(*two, refusal=None)
        rows = await queued(queue.database)
        assert [row.event_type for row in rows] == ["flowactions.database.writable"] * number
        assert len({row.event_id for row in rows}) == number
    # It has seen the end of neither: what was refused before says nothing, and the next refusal is of the third one.
    for _ in range(2):
        await look(late, refusal="its disk is full")
    assert [message.event_id for message in late.sent] != [message.event_id for message in two[0].sent]
    assert len({message.event_id for message in (*late.sent, *two[0].sent)}) == 3
    await look(late, refusal=None)
    assert len(await queued(queue.database)) == 3


async def test_an_alert_that_does_not_arrive_is_sent_again_in_a_minute(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the database takes no writes; each time it is the same event, until it has arrived."""
    now = [queue.database.clock()]
    monkeypatch.setattr(queue.database, "clock", lambda: now[0])
    watched = Watched(queue.database)
    refuse(queue.database, "its disk is full")
    for seconds, sent in ((0, 1), (59, 1), (1, 2), (0, 2), (60, 3), (3600, 3)):
        now[0] += seconds
        watched.answers = (0, 500, 200)[sent - 1]  # none at first: this side could not send
        await watched.look()
        assert len(watched.sent) == sent
    assert len({each.event_id for each in watched.sent}) == 1


async def test_what_was_refused_before_an_outage_ended_begins_no_other_one(queue: Queue) -> None:
    """A worker that still knows of the last refusal tells nothing, when another one has told the end."""
    first, second = Watched(queue.database), Watched(queue.database)
    refuse(queue.database, "its disk is full")
    for each in (first, second):
        await each.look()
    last = queue.database.refused
    refuse(queue.database, None)
    await first.look()
    queue.database._outages.refused = last
    await second.look()
    assert len(second.sent) == 1
    assert len(await queued(queue.database)) == 1
    refuse(queue.database, "its disk is full")
    await second.look()
    assert len(second.sent) == 2


async def test_rows_of_a_window_that_are_written_late_are_counted(queue: Queue) -> None:
    """A window is counted ten seconds after its end: what a slow transaction has written then is in it."""
    watched = Watched(queue.database)
    end = int(await queue.database.time() * 1000) // WINDOW_MS * WINDOW_MS - WINDOW_MS

    async def count(now: int) -> list[int]:
        await watched.watch._count_dead(now)
        found = await bodies_of(queue.database, "flowactions.deliveries.dead")
        return [each["data"]["deliveries"] for each in found]

    await dead(queue, 1, at=end - 1000)
    assert await count(end + 10_000 - 1) == []
    await dead(queue, 1, at=end - 1)
    await dead(queue, 1, at=end)
    assert await count(end + 10_000) == [2]
    assert await count(end + 10_000 + WINDOW_MS) == [2, 1]
