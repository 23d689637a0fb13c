"""No call waits for long for a PostgreSQL that does not go on: it answers, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final

import asyncpg
import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import FlowActions, NotQueued, Walk
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage import waiting
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import inbound_events
from flowactions_plugin.storage.waiting import ANSWER_SECONDS, RECOVERY_SECONDS
from tests.host_transactions import (
    CALLS,
    REF,
    SharingHost,
    a_host_engine,
    before,
    enqueuer_of,
    order,
    webhook,
)
from tests.owning import own_webhook
from tests.rings import sampled
from tests.support import a_walk
from tests.waiting import SAFETY_SECONDS, Limits, until

LOCKED: Final = (
    "LOCK TABLE flowactions_outbox, flowactions_deferred, flowactions_enqueue_keys IN ACCESS EXCLUSIVE MODE"
)


async def _enqueue(actions: FlowActions, key: str | None, transaction: Any) -> Any:
    try:
        return await actions.enqueue(own_webhook(idempotency_key=key), transaction)
    except NotQueued as exc:
        return exc


async def _advance(actions: FlowActions, walk: Walk, transaction: Any) -> Any:
    return await actions.advance(walk, "now", transaction)


async def _route(actions: FlowActions) -> Any:
    try:
        return await enqueuer_of(actions).call(REF, "k")
    except StorageUnavailable as exc:
        return exc


Call = Callable[[FlowActions, Walk, Any], Awaitable[Any]]

WAITING: Final[dict[str, Call]] = {
    **CALLS,
    "advance": _advance,
    "enqueue": lambda actions, _, given: _enqueue(actions, None, given),
    "enqueue, with a key": lambda actions, _, given: _enqueue(actions, "k", given),
}
"""Every call that has to be answered."""


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time for an answer: that the limits add up is shown by `test_the_limits_add_up`."""
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("flowactions_plugin.queue.enqueue.KEY_SECONDS", 0.0)
    monkeypatch.setattr("flowactions_plugin.nodes.pacing.REPEAT_SECONDS", 3600.0)


@asynccontextmanager
async def a_session(url: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    """Open a session of somebody else's."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def waiting_for_locks(session: asyncpg.Connection[Any]) -> list[int]:
    """Give the server's processes that wait for a lock."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return [row["pid"] for row in await session.fetch(query)]


@pytest.fixture(params=["host's engine", "own engine"])
async def running(
    request: pytest.FixtureRequest, postgres_url: str
) -> AsyncIterator[tuple[FlowActions, SharingHost]]:
    """A host, with either engine."""
    engine = a_host_engine("asyncpg", postgres_url, pool_size=2, max_overflow=0)
    try:
        host = SharingHost(engine, FLOWACTIONS_DATABASE_URL=postgres_url)
        if request.param == "own engine":
            host.database = None
        await host.make_table()
        actions = FlowActions.load(host)
        async with actions.lifespan(tasks=False):  # the tasks wait for the locks, too
            yield actions, host
    finally:
        await engine.dispose()


async def answered(call: Awaitable[Any]) -> Any:
    """Await a call that only a hang keeps from ending."""
    async with asyncio.timeout(SAFETY_SECONDS / 2):
        return await call


def fails(answer: Any) -> bool:
    """Tell whether an answer says that the database did not answer."""
    if isinstance(answer, Exception):
        return "did not answer within" in str(answer)
    if getattr(answer, "state", None) is not None:
        return not answer.results  # without a transaction, the plugin repeats it
    return bool(answer.reason == "storage_unavailable")


async def reached(actions: FlowActions, walk: Walk, transaction: Any = None) -> str:
    """Reach a webhook, in the time that a busy machine may take; give what has become of it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(waiting, "ANSWER_SECONDS", SAFETY_SECONDS)
        return (await actions.reach(walk, webhook(), transaction)).status


async def test_a_locked_table_is_answered(running: tuple[FlowActions, SharingHost], postgres_url: str) -> None:
    """Each call without a transaction fails in time; nothing is written later, and no session waits on."""
    actions, host = running
    walk = a_walk()
    assert await reached(actions, before(walk, "now")) == "recorded"
    async with a_session(postgres_url) as other:
        async with other.transaction():
            await other.execute(LOCKED)
            calls = [call(actions, walk, None) for call in WAITING.values()]
            answers = await answered(asyncio.gather(*calls, _route(actions)))
            assert [
                name for name, answer in zip([*WAITING, "route"], answers, strict=True) if not fails(answer)
            ] == []
            await until(lambda: _nobody_waits(other))
        assert await host.count("outbox") == 0
        assert await host.count("deferred") == 1
    assert await reached(actions, walk) == "queued"


async def _nobody_waits(session: asyncpg.Connection[Any]) -> bool:
    return not await waiting_for_locks(session)


@pytest.mark.parametrize("running", ["host's engine"], indirect=True)
async def test_a_hosts_transaction_outlives_a_locked_table(
    running: tuple[FlowActions, SharingHost], postgres_url: str
) -> None:
    """Each call in it fails in time, what the host writes before and after is stored, and no setting is changed."""
    actions, host = running
    walk = a_walk()
    assert await reached(actions, before(walk, "now")) == "recorded"
    async with a_session(postgres_url) as other, host.engine.connect() as connection:
        await order(connection, "before")
        settings = await _settings(connection)
        async with other.transaction():
            await other.execute(LOCKED)
            for name, call in WAITING.items():
                assert fails(await answered(call(actions, walk, connection))), name
                await order(connection, name)
        assert await _settings(connection) == settings
        assert await reached(actions, walk, connection) == "queued"
        await connection.commit()
        assert await _settings(connection) == settings
    assert await host.ids() == {"before", *WAITING}


async def _settings(connection: AsyncConnection) -> list[tuple[Any, ...]]:
    found = await connection.execute(text("SELECT name, setting, source FROM pg_settings ORDER BY name"))
    return [tuple(each) for each in found.all()]


@pytest.mark.parametrize("running", ["host's engine"], indirect=True)
async def test_an_exhausted_pool_is_answered(running: tuple[FlowActions, SharingHost]) -> None:
    """A call that gets no connection fails in time; when there is one again, it works."""
    actions, host = running
    walk = a_walk()
    assert await reached(actions, before(walk, "now")) == "recorded"
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(host.engine.connect())
        answers = await answered(
            asyncio.gather(*(call(actions, walk, None) for call in WAITING.values()), _route(actions))
        )
        assert all(map(fails, answers))
    assert await reached(actions, walk) == "queued"
    assert await host.count("outbox") == 1


COMMITS: Final = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON flowactions_outbox
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()
"""


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_commit_that_hangs_may_have_been_made(
    running: tuple[FlowActions, SharingHost],
    postgres_url: str,
    key: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer says so, whether the COMMIT was a statement of its own or not, and whichever limit ended the wait."""
    if key is not None:  # the wait for the key ends before that for the database
        monkeypatch.setattr("flowactions_plugin.queue.keys.KEY_SECONDS", Limits.SECONDS)
        monkeypatch.setattr("flowactions_plugin.queue.enqueue.KEY_SECONDS", 0.0)
    actions, _ = running
    async with a_session(postgres_url) as other:
        await other.execute(COMMITS)
        await other.execute("SELECT pg_advisory_lock(7)")

        async def given_up(call: Awaitable[Any]) -> Any:
            await until(lambda: _nobody_waits(other))
            if key is None:
                monkeypatch.setattr(waiting, "ANSWER_SECONDS", Limits.SECONDS)
            with Limits() as limits:
                calling = asyncio.ensure_future(call)
                await until(lambda: waiting_for_locks(other))
                limits.end()
                return await answered(calling)

        error = await given_up(_enqueue(actions, key, None))
        assert "It is not known whether the webhook was queued" in str(error)
        if key is None:
            result = await given_up(actions.reach(a_walk(), webhook()))
            assert "may still have been queued" in str(result.message)


@sampled("joins", [False, True], size=1)
@pytest.mark.parametrize("running", ["host's engine"], indirect=True)
async def test_a_server_that_stops_is_answered(
    running: tuple[FlowActions, SharingHost], postgres_url: str, joins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops while a call waits, and does not cancel it either: a host's transaction cannot be committed then."""
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", Limits.SECONDS)
    monkeypatch.setattr(waiting, "RECOVERY_SECONDS", 0.2)
    actions, host = running
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(a_session(postgres_url))
        connection = await stack.enter_async_context(host.engine.connect()) if joins else None
        if connection is not None:
            await order(connection, "lost")
        async with other.transaction():
            await other.execute(LOCKED)
            with Limits() as limits:
                call = asyncio.create_task(actions.reach(a_walk(), webhook(), connection))
                with _stopped(await until(lambda: waiting_for_locks(other))):
                    limits.end()
                    assert fails(await answered(call))
        if connection is not None:
            with pytest.raises(SQLAlchemyError):
                await connection.commit()
    assert "lost" not in await host.ids()
    assert await reached(actions, a_walk()) == "queued"


@contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    """Stop processes of the server's."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_the_limits_add_up() -> None:
    """A walk waits six seconds at the most: for statements, and then for what ends them, the driver's two seconds."""
    assert ANSWER_SECONDS + max(RECOVERY_SECONDS, 2.0) <= 6.0


async def test_what_is_left_to_the_hosts_commit_is_not_denied(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is up as the SAVEPOINT is released, and nothing rolls the write back any more."""
    monkeypatch.setattr(waiting, "ANSWER_SECONDS", Limits.SECONDS)
    engine = a_host_engine("asyncpg", postgres_url)
    async with Database(postgres_url, engine) as database:
        release = database.transactions._release

        async def answered_late(connection: AsyncConnection) -> None:
            await release(connection)
            limits.end()
            await asyncio.sleep(0)

        async def write(transaction: AsyncConnection) -> None:
            async with database.answering(), database.write(transaction) as joined:
                await joined.execute(insert(inbound_events).values(provider="p", event_id="e", received_at=0))

        monkeypatch.setattr(database.transactions, "_release", answered_late)
        async with engine.begin() as connection:
            with Limits() as limits, pytest.raises(StorageUnavailable) as caught:
                await write(connection)
        async with engine.connect() as connection:
            assert (await connection.scalars(select(inbound_events.c.event_id))).all() == ["e"]
    await engine.dispose()
    assert caught.value.may_be_written


async def test_what_a_transaction_of_the_hosts_did_not_take_is_denied(postgres_url: str) -> None:
    """An error of the host's has aborted it, so no SAVEPOINT was set."""
    engine = a_host_engine("asyncpg", postgres_url)
    async with Database(postgres_url, engine) as database, engine.connect() as connection:
        with pytest.raises(SQLAlchemyError):
            await connection.execute(text("SELECT 1 / 0"))
        with pytest.raises(StorageUnavailable) as caught:
            async with database.write(connection):
                raise AssertionError
    await engine.dispose()
    assert not caught.value.may_be_written


async def test_of_limits_within_each_other_one_cancels() -> None:
    """The driver is not interrupted while it asks the server to cancel the statement."""
    interrupted = False

    async def run() -> None:
        nonlocal interrupted
        async with waiting.answering(0.01), waiting.answering(0.011):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    interrupted = True
                raise

    with pytest.raises(StorageUnavailable):
        await run()
    assert not interrupted


async def test_a_task_that_is_started_within_a_limit_has_its_own() -> None:
    """It may outlive the call that has started it: a row of several callers is written by such a task."""

    async def hanging() -> None:
        async with waiting.answering(0.01):
            await asyncio.Event().wait()

    async with waiting.answering(SAFETY_SECONDS):
        task = asyncio.create_task(hanging())
    with pytest.raises(StorageUnavailable):
        await answered(task)


async def test_a_timeout_within_the_time_for_an_answer_is_the_blocks_own() -> None:
    """It says nothing of the database."""
    with pytest.raises(TimeoutError, match="a host's"):
        async with waiting.answering(300.0):
            raise TimeoutError("a host's")
