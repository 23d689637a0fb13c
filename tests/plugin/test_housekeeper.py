from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowactions_hookspecs import FlowActions
from flowactions_plugin import housekeeper as module
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.housekeeper import JITTER, Entry, Housekeeper
from flowactions_plugin.storage.outages import TOGETHER_SECONDS, OutageLog, together
from tests.support import SmallHost, development, services_of
from tests.waiting import until


class Database:
    """What the housekeeper knows of a database: whether it is there."""

    def __init__(self) -> None:
        self.is_away = False
        self.tries = 0

    async def reach(self) -> None:
        self.tries += 1
        self.check()

    def check(self) -> None:
        if self.is_away:
            raise StorageUnavailable("away")


class Work:
    """Work that counts how often it begins, and does what it is told."""

    def __init__(
        self,
        name: str,
        seconds: float = 0.0,
        bound: float = 300,
        act: Callable[[], Awaitable[Any]] | None = None,
    ) -> None:
        self.entry = Entry(name, seconds, self, bound)
        self.begun = self.now = self.most = 0
        self._act = act

    async def __call__(self) -> float | None:
        self.begun += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(0)
            return None if self._act is None else await self._act()
        finally:
            self.now -= 1


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "FAILURE_SECONDS", 0.02)
    monkeypatch.setattr(module, "restart_delay", lambda failures: 0.01 * failures)


@asynccontextmanager
async def keeping(*works: Work, database: Database | None = None) -> AsyncIterator[asyncio.Task[None]]:
    kept = Housekeeper([each.entry for each in works], OutageLog(), (database or Database()).reach)
    running = asyncio.create_task(kept.run())
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.wait({running})


async def forever() -> None:
    await asyncio.Event().wait()


async def test_everything_is_done_at_once_and_then_when_it_is_due() -> None:
    """Each entry has an interval of its own, and may ask for another one."""

    async def asks_for_more() -> float:
        return 0.0 if eager.begun < 5 else 3600.0

    often, seldom, eager = Work("often"), Work("seldom", 3600), Work("eager", 3600, act=asks_for_more)
    async with keeping(often, seldom, eager):
        await until(lambda: often.begun > 20)
        assert (seldom.begun, eager.begun) == (1, 5)
    assert often.most == 1


@pytest.mark.parametrize("chance", [0.0, 1.0])
async def test_pauses_have_jitter(monkeypatch: pytest.MonkeyPatch, chance: float) -> None:
    """A pause is as long as it was asked for, or up to a tenth longer."""
    asked: list[float] = []

    def noted(seconds: float) -> float:
        asked.append(seconds)
        return 0.0 if len(asked) < 3 else 3600.0

    monkeypatch.setattr(module, "together", noted)
    kept = Housekeeper([Work("w", 10.0).entry], OutageLog(), Database().reach, lambda: chance)
    running = asyncio.create_task(kept.run())
    await until(lambda: len(asked) == 3)
    running.cancel()
    await asyncio.wait({running})
    assert asked == pytest.approx([10.0 * (1 + JITTER * chance)] * 3)


async def test_parts_of_a_process_wake_at_the_same_moments() -> None:
    """Each wakes an idle process otherwise; short waits are as they are, and processes differ."""
    assert together(0.3) == 0.3
    clock, places = asyncio.get_running_loop().time, list[float]()
    for seconds in (TOGETHER_SECONDS, 1.3, 5.0, 3600.0):
        wait = together(seconds)
        places.append((clock() + wait) / TOGETHER_SECONDS)
        assert abs(wait - seconds) <= TOGETHER_SECONDS / 2 + 1e-9
    assert max(abs(math.remainder(each - places[0], 1)) for each in places) < 0.1


async def test_a_slow_entry_delays_no_other_and_is_not_begun_twice() -> None:
    """Entries run beside each other; the same one does not."""
    slow, other = Work("slow", act=forever), Work("other")
    async with keeping(slow, other):
        await until(lambda: other.begun > 50)
        assert (slow.begun, slow.most) == (1, 1)


async def test_an_entry_that_takes_too_long_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    """It is cancelled, the log says so, and it is done again; one that does not let itself be cancelled is not begun again."""
    ends = asyncio.Event()

    async def refuses() -> None:
        while not ends.is_set():
            try:
                await ends.wait()
            except asyncio.CancelledError:
                continue

    slow, other = Work("slow", bound=0.01, act=forever), Work("other", 0.01)
    stubborn = Work("stubborn", 0.01, bound=0.01, act=refuses)
    async with keeping(slow, stubborn, other):
        await until(lambda: slow.begun > 3 and other.begun > 3)
        assert (slow.most, stubborn.begun) == (1, 1)
        ends.set()
        await until(lambda: stubborn.begun > 1)
    assert "slow was cancelled after 0.01 s; again in 0.02 s" in caplog.text


async def test_an_entry_that_fails_is_logged_and_done_again(caplog: pytest.LogCaptureFixture) -> None:
    """With a growing pause, until it has worked; what is cancelled from within has failed, too."""

    async def fails() -> None:
        if failing.begun == 3:
            raise asyncio.CancelledError
        if failing.begun < 5:
            raise ValueError("unexpected")

    failing, other = Work("failing", act=fails), Work("other")
    async with keeping(failing, other) as running:
        await until(lambda: failing.begun > 5 and other.begun > 5)
        assert not running.done()
    lines = [record for record in caplog.records if record.getMessage().startswith("failing failed")]
    assert [record.getMessage()[-6:] for record in lines] == [f"0.0{n} s" for n in (1, 2, 3, 4)]
    assert all(record.exc_info for record in lines)


async def test_an_outage_pauses_everything_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """One wait for all: nothing is begun until the database answers, but what says that the process lives; then all go on."""
    database = Database()

    async def reads() -> None:
        database.check()

    works, lives = [Work(name, act=reads) for name in ("a", "b")] + [Work("memory")], Work("lives")
    lives.entry = lives.entry._replace(always=True)
    async with keeping(*works, lives, database=database):
        await until(lambda: all(each.begun > 5 for each in works))
        database.is_away = True
        await until(lambda: database.tries > 3)
        begun = [each.begun for each in works]
        seen = lives.begun
        await until(lambda: database.tries > 6 and lives.begun > seen + 5)
        assert [each.begun for each in works] == begun
        assert sum("_wait_for_database" in str(each) for each in asyncio.all_tasks()) == 1
        assert "out of reach" in caplog.text
        database.is_away = False
        await until(lambda: all(each.begun > was + 5 for each, was in zip(works, begun, strict=True)))
    messages = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert messages == [
        "the database is out of reach, trying again with backoff",
        "the database is reachable again",
    ]


async def test_what_cannot_use_the_database_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    """An entry that lacks a right, say, is tried again and again, and logged once, while the others go on."""

    async def lacks_a_right() -> None:
        raise StorageUnavailable("no rights", code="42501")

    without, other = Work("without", act=lacks_a_right), Work("other")
    async with keeping(without, other):
        await until(lambda: without.begun > 3)
        begun = other.begun
        await until(lambda: other.begun > begun + 20)
    assert len(caplog.records) == 1


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_stop_ends_what_is_being_done(*, is_away: bool) -> None:
    """All of it, and also while the database is away; nothing of it runs afterwards."""
    database, ended = Database(), list[str]()
    before = asyncio.all_tasks()

    async def cleans_up() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            ended.append("slow")

    async def reads() -> None:
        database.is_away = is_away
        database.check()

    slow, other = Work("slow", act=cleans_up), Work("other", act=reads)
    async with keeping(slow, other, database=database) as running:
        await until(lambda: slow.now and (database.tries > 2 if is_away else other.begun > 2))
    assert running.cancelled()
    assert ended == ["slow"]
    assert asyncio.all_tasks() == before


async def test_a_housekeeper_can_run_again() -> None:
    """A supervisor starts one that has failed again."""
    work, database = Work("w"), Database()
    kept = Housekeeper([work.entry], OutageLog(), database.reach)
    for _ in range(2):
        begun = work.begun
        running = asyncio.create_task(kept.run())
        await until(lambda: work.begun > begun)  # noqa: B023
        running.cancel()
        await asyncio.wait({running})


async def test_a_worker_does_all_of_it(
    database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each entry of a worker works on a real database, whether or not it delivers; a stop leaves no task."""
    monkeypatch.chdir(tmp_path)  # where a development host writes its key
    settings = development(
        database_url,
        FLOWACTIONS_ALERTS_URL="http://127.0.0.1:9/alerts",
        FLOWACTIONS_ALERTS_SECRET="whsec_" + "c2VjcmV0" * 6,
        FLOWACTIONS_AUTO_PAUSE="20,30m",
    )
    before = asyncio.all_tasks()
    host = SmallHost(settings)
    async with services_of(host) as services:
        entries = services_of(host).housekeeping()
        assert services is None
        for each in entries:
            await each.work()
    async with FlowActions.load(SmallHost(settings)).lifespan():
        pass
    assert asyncio.all_tasks() == before
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
