from __future__ import annotations

import asyncio
import math
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.queue import continuous, notifier
from flowactions_plugin.queue.lanes import AS_KNOWN, EVER, Due
from flowactions_plugin.queue.notifier import (
    DEBOUNCE_SECONDS,
    PAYLOAD_BYTES,
    Named,
    Notifier,
    lanes_in,
    listen_forever,
    payload_of,
)
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.queueing import Queue, a_delivery
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import until


class Pauses:
    """Stands in for the notifier's pauses: each lasts until the test ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self._end = asyncio.Semaphore(0)
        stand_in = SimpleNamespace(**{**vars(asyncio), "sleep": self._pause})
        monkeypatch.setattr(notifier, "asyncio", stand_in)

    async def _pause(self, seconds: float) -> None:
        assert seconds == DEBOUNCE_SECONDS
        self.begun += 1
        await self._end.acquire()

    async def end(self, number: int) -> None:
        """Wait until so many pauses were begun, and end the last of them."""
        await until(lambda: self.begun == number)
        self._end.release()


class Sent(list[str]):
    """Takes what a notifier sends."""

    async def __call__(self, payload: str) -> None:
        self.append(payload)


async def turns() -> None:
    """Let the event loop do what is there to be done."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_notifications_are_debounced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes out at once; those of a moment go together; the last is never swallowed."""
    pauses, sent = Pauses(monkeypatch), Sent()
    sending = Notifier(sent)
    async with sending:
        for round_ in (1, 2, 3):
            for _ in range(100):
                sending.notify(*named(1))
                await turns()
            # The first round's first notification, and then one for all that came during each pause.
            assert (len(sent), pauses.begun) == (round_, round_)
            await pauses.end(round_)
            await until(lambda round_=round_: len(sent) == round_ + 1)  # type: ignore[misc]
        await pauses.end(4)
        await turns()
        assert len(sent) == 4
        sending.notify(*named(1))
        await until(lambda: len(sent) == 5)
        await pauses.end(5)


async def test_a_notification_that_fails_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is sent all the same."""
    pauses, tried = Pauses(monkeypatch), 0

    async def notify(_payload: str) -> None:
        nonlocal tried
        tried += 1
        raise StorageUnavailable("away")

    sending = Notifier(notify)
    async with sending:
        for expected in (1, 2):
            sending.notify(*named(1))
            await until(lambda expected=expected: tried == expected)  # type: ignore[misc]
            await pauses.end(expected)
            await turns()


async def test_after_its_end_it_does_not_notify() -> None:
    """A commit that is notified of too late opens no connection that nobody would close."""
    sent = Sent()
    sending = Notifier(sent)
    sending.notify(*named(1))
    async with sending:
        pass
    sending.notify(*named(1))
    await turns()
    assert sent == []
    async with sending:
        sending.notify(*named(1))
        await until(lambda: sent)


async def test_what_was_enqueued_last_is_notified_of() -> None:
    """A process that enqueues and ends leaves no row for a poll to find."""
    sent = Sent()
    sending = Notifier(sent)
    async with sending:
        sending.notify(*named(1))
        await until(lambda: sent)
        sending.notify(*named(-2))
    assert [*map(lanes_in, sent)] == [named(1), named(-2)]


async def test_a_database_that_does_not_answer_keeps_no_process_from_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A notification is a hint."""
    monkeypatch.setattr(notifier, "CLOSE_SECONDS", 0.01)

    async def notify(_payload: str) -> None:
        await asyncio.Event().wait()

    sending = Notifier(notify)
    async with sending:
        sending.notify(*named(1))
    assert sending._sending is None


async def test_a_notification_names_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of those of a moment once; the next notification names others only."""
    pauses, sent = Pauses(monkeypatch), Sent()
    sending = Notifier(sent)
    async with sending:
        sending.notify(*named(1))
        await until(lambda: pauses.begun == 1)
        for each in named(2, -3, 2):
            sending.notify(each)
        await pauses.end(1)
        await pauses.end(2)
    assert [set(lanes_in(payload) or ()) for payload in sent] == [set(named(1)), set(named(2, -3))]


def named(*numbers: int) -> list[Named]:
    return [Named(each, "acme", "https://hooks.example.com:443") for each in numbers]


@given(st.sets(st.integers(-(1 << 63), (1 << 63) - 1), max_size=800), st.text(max_size=30))
def test_a_payload_fits_and_names_all_or_none(numbers: set[int], organization: str) -> None:
    """PostgreSQL takes no more bytes. If names do not fit, the payload has numbers; if these do not fit, it is empty."""
    lanes = {Named(each, organization, "https://hooks.example.com:443") for each in numbers}
    payload = payload_of(lanes)
    assert len(payload.encode()) <= PAYLOAD_BYTES < 8000
    found = lanes_in(payload)
    if found is None:
        assert not lanes or len(lanes) > 300
    elif set(found) != lanes:
        assert set(found) == {Named(each) for each in numbers}
        assert len(lanes) > 20


@pytest.mark.parametrize(
    "payload", ["", "acme", "1", "[1]", "[]", "[[1.5]]", '[[1,2,"x"]]', "[[" + "9" * 5000 + "]]"]
)
def test_a_payload_of_somebody_else_names_no_lane(payload: str) -> None:
    """Whoever may connect to the database may notify."""
    assert lanes_in(payload) is None


async def test_a_lost_connection_is_listened_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a lost connection the worker looks once, for it may have missed something, and listens again."""
    monkeypatch.setattr(notifier, "RELISTEN_SECONDS", 0.01)
    listened, notified = 0, 0

    async def listen() -> None:
        nonlocal listened
        listened += 1
        if listened % 2:
            raise StorageUnavailable("away")

    def on_missed() -> None:
        nonlocal notified
        notified += 1

    task = asyncio.create_task(listen_forever(listen, on_missed))
    await until(lambda: notified >= 3)
    task.cancel()
    assert listened >= 3


async def test_a_worker_of_another_process_looks_for_new_rows(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite, a row of one host is delivered by another without a poll of the queue."""
    monkeypatch.setattr(continuous, "LOOK_SECONDS", 3600.0)
    settings = development(sqlite_url, FLOWACTIONS_DELIVERY="continuous")
    sending = FlowActions.load(SmallHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
    delivering = FlowActions.load(SmallHost(settings))
    async with recorder() as receiver, sending.lifespan(), delivering.lifespan():
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
        for number in range(1, 4):
            await sending.reach(a_walk(), node)
            await until(lambda number=number: len(receiver.requests) == number)  # type: ignore[misc]


async def test_a_worker_of_another_process_is_notified(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, a row of one host is delivered by another at once, and again after its connection was cut."""
    monkeypatch.setattr(continuous, "LOOK_SECONDS", 3600.0)
    monkeypatch.setattr(notifier, "RELISTEN_SECONDS", 0.2)
    settings = development(postgres_url, FLOWACTIONS_DELIVERY="continuous")
    sending = FlowActions.load(SmallHost({**settings, "FLOWACTIONS_HOST_WORKER": "off"}))
    delivering = FlowActions.load(SmallHost(settings))
    async with recorder() as receiver, sending.lifespan(), delivering.lifespan():
        database = services_of(sending.host)._database
        node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})

        async def listeners() -> int:
            query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
            async with database.read() as connection:
                return int((await connection.execute(text(query))).scalar_one())

        await until(listeners)
        assert (await sending.reach(a_walk(), node)).status == "queued"
        await until(lambda: len(receiver.requests) == 1)
        async with database.read() as connection:
            await connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE query LIKE 'LISTEN%' AND datname = current_database()"
                )
            )
        assert (await sending.reach(a_walk(), node)).status == "queued"  # nobody listens, perhaps
        await until(lambda: len(receiver.requests) == 2)
        await until(listeners)


@pytest.mark.parametrize("wrong", [("another", ""), ("", "another")])
async def test_a_claim_takes_no_row_of_a_lane_whose_name_is_wrong(
    postgres_url: str, wrong: tuple[str, str]
) -> None:
    """A notification may say anything: a pause of the row's own destination would not be seen."""
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": postgres_url}).database_url) as database:
        queue = Queue(database)
        row_id = await queue.put()
        (ask,) = await queue.store.oldest(1, None)
        organization, destination = wrong
        named = ask._replace(
            organization_id=organization or ask.organization_id, destination=destination or ask.destination
        )
        assert await queue.store.claim([named]) == []
        assert [row.id for row in await queue.store.claim([ask])] == [row_id]


@pytest.mark.parametrize(("ago", "since"), [(-100.0, AS_KNOWN), (1.0, EVER), (math.inf, EVER)])
async def test_a_row_of_a_long_transaction_is_searched_for_from_the_first_entry(
    queue: Queue, ago: float, since: int
) -> None:
    """Its due time may be earlier than what the lane's last claim has found; that of a row just written is not."""
    told: list[Due] = []
    queue.store._outbox.on_commit = told.append
    queue.store._outbox.committed(a_delivery(), time.monotonic() - ago)
    assert [due.since for due in told] == [since]
