"""Nodes of other plugins' types: what their `reach` and `write` may do, and what comes of it when they fail (§3.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import pytest
from sqlalchemy import insert, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from flowactions_hookspecs import (
    Advanced,
    HostOrigin,
    InTransaction,
    Node,
    NodeResult,
    OutboundWebhook,
    Walk,
)
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.nodes.store import LEASE_SECONDS, MAX_LEASES, DeferredStore, step_of
from flowactions_plugin.storage.database import Database
from tests.pacing import another
from tests.plugin.nodes.crm import Act, Contact, crm, ran
from tests.rings import sampled
from tests.support import a_walk
from tests.waiting import SAFETY_SECONDS


def writes(write: Callable[[AsyncConnection, Node], Awaitable[Any]]) -> Act:
    """Make a durable node of what it writes."""

    async def act(walk: Walk, node: Node) -> InTransaction:
        return InTransaction(lambda transaction: write(transaction, node))

    return act


async def by_core(transaction: AsyncConnection, node: Node) -> NodeResult:
    await transaction.execute(insert(Contact).values(id=node.id))
    assert await transaction.scalar(select(Contact.id).where(Contact.id == node.id)) == node.id
    assert (await transaction.scalars(select(Contact.id))).all()
    return NodeResult(status="sent")


async def by_driver_sql(transaction: AsyncConnection, node: Node) -> NodeResult:
    await transaction.exec_driver_sql(f"INSERT INTO crm_contacts (id) VALUES ('{node.id}')")  # noqa: S608
    return NodeResult(status="sent")


async def by_run_sync(transaction: AsyncConnection, node: Node) -> NodeResult:
    await transaction.run_sync(lambda connection: connection.execute(insert(Contact).values(id=node.id)))
    return NodeResult(status="sent")


async def by_session(transaction: AsyncConnection, node: Node) -> NodeResult:
    async with AsyncSession(transaction) as session, session.begin():
        session.add(Contact(id=node.id))
    return NodeResult(status="sent")


async def by_session_that_commits(transaction: AsyncConnection, node: Node) -> NodeResult:
    async with AsyncSession(transaction) as session:
        session.add(Contact(id="undone"))
        await session.flush()
        await session.rollback()
        session.add(Contact(id=node.id))
        await session.commit()
    return NodeResult(status="sent")


async def by_savepoint(transaction: AsyncConnection, node: Node) -> NodeResult:
    async with transaction.begin_nested():
        await transaction.execute(insert(Contact).values(id=node.id))
    return NodeResult(status="sent")


WAYS = [by_core, by_driver_sql, by_run_sync, by_session, by_session_that_commits, by_savepoint]


class TestWhatAWriteMayDo:
    @pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
    async def test_it_has_the_whole_interface_of_a_connection(self, database_url: str, way: Any) -> None:
        """Eager, deferred and in a host's transaction; with the host's commit it is there, with its rollback it is not."""
        async with crm(database_url, writes(way)) as run:
            assert (await run.actions.reach(a_walk(), Node(id="eager", type="crm"))).status == "sent"
            walk = await run.record("deferred")
            assert ran(await run.actions.advance(walk, "s")) == [("deferred", "sent")]
            walk = await run.record("joined", "b")
            for commit, left in ((False, ["joined", "b"]), (True, [])):
                async with run.engine.connect() as connection:
                    assert (
                        await run.actions.reach(a_walk(), Node(id="now", type="crm"), connection)
                    ).status == "sent"
                    found = await run.actions.advance(walk, "s", connection)
                    assert (found.state, ran(found)) == ("done", [("joined", "sent"), ("b", "queued")])
                    await (connection.commit() if commit else connection.rollback())
                assert sorted(await run.ids("flowactions_deferred WHERE ran_at IS NULL", "node_id")) == sorted(
                    left
                )
                expected = ["deferred", "eager", "joined", "now"] if commit else ["deferred", "eager"]
                assert await run.ids() == expected


async def test_a_write_may_write_a_webhook_beside_its_own_rows(database_url: str) -> None:
    """`prepare` before, both in one transaction: together there, or together not; the same again is the same row."""

    async def act(walk: Walk, node: Node) -> InTransaction:
        origin = HostOrigin(organization_id="acme", name="contact", id=node.id)
        webhook = OutboundWebhook(
            organization_id="acme",
            event_type="crm.upserted",
            entity=node.id,
            url="http://127.0.0.1:9/",
            origin=origin,
        )
        prepared = await run.actions.prepare(webhook)

        async def write(transaction: AsyncConnection) -> NodeResult:
            await by_core(transaction, node)
            result = await prepared.write(transaction)
            if node.id == "fails":
                raise LookupError
            assert await prepared.write(transaction) == result
            return result

        return InTransaction(write)

    async with crm(database_url, act) as run:
        for transaction in (False, True):
            for name in ("works", "fails"):
                walk = await run.record(name)
                async with run.engine.connect() as connection:
                    given = connection if transaction else None
                    status = "queued" if name == "works" else "failed"
                    assert ran(await run.actions.advance(walk, "s", given)) == [(name, status)]
                    await connection.commit()
            assert await run.ids() == ["works"]
            assert len(await run.ids("flowactions_outbox")) == 1
            async with run.engine.begin() as connection:
                for table in ("crm_contacts", "flowactions_outbox"):
                    await connection.execute(text(f"DELETE FROM {table}"))  # noqa: S608  a test's own words


@pytest.mark.parametrize("alone", [True, False])
async def test_a_prepared_webhook_has_the_time_of_the_outbox_if_it_is_all_that_is_written(
    database_url: str, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eager, deferred and in a host's transaction; a function that calls its `write` has the time of a plugin's SQL."""

    async def act(walk: Walk, node: Node) -> InTransaction:
        webhook = OutboundWebhook(
            organization_id="acme",
            event_type="crm.upserted",
            entity=walk.run_id,
            url="http://127.0.0.1:9/",
            origin=HostOrigin(organization_id="acme", name="contact", id=node.id),
        )
        prepared = await run.actions.prepare(webhook)

        async def write(transaction: AsyncConnection) -> NodeResult:
            return await prepared.write(transaction)

        return InTransaction(prepared.write if alone else write)

    async def results() -> list[str]:
        found = [await run.actions.reach(a_walk(), Node(id="n", type="crm"))]
        found += (await run.actions.advance(await run.record("n"), "s")).results
        async with run.engine.connect() as connection:
            found.append(await run.actions.reach(a_walk(), Node(id="n", type="crm"), connection))
            await connection.commit()
        return [each.reason or each.status for each in found]

    async with crm(database_url, act) as run:
        assert await results() == ["queued"] * 3
        monkeypatch.setattr("flowactions_plugin.nodes.running.WRITE_SECONDS", 0.0)
        monkeypatch.setattr("flowactions_plugin.nodes.running.LONE_WRITE_SECONDS", 0.0)
        assert await results() == ["queued" if alone else "plugin_error"] * 3
        assert len(await run.ids("flowactions_outbox")) == (6 if alone else 3)


async def test_what_it_takes_to_resolve_a_name_is_not_given_to_the_database(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a walk has a limit; an author's own function may take longer, but no more than a second is taken away."""
    given: list[float] = []
    times = iter([0.0, 0.75, 0.0, 9.0])
    monkeypatch.setattr("flowactions_plugin.nodes.running.timer", lambda: next(times))

    def answering(_: Database, more: float = 0.0) -> nullcontext[None]:
        given.append(more)
        return nullcontext()

    async with crm(sqlite_url, writes(by_core)) as run:
        with monkeypatch.context() as patched:
            patched.setattr(Database, "answering", answering)
            for name in ("a", "b"):
                assert (await run.actions.reach(a_walk(), Node(id=name, type="crm"))).status == "sent"
    assert [each for each in given if each] == [-0.75, -1.0]


async def commits(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    await transaction.commit()
    return NodeResult(status="sent")


async def rolls_back(transaction: AsyncConnection, node: Node) -> NodeResult:
    await transaction.rollback()
    await by_core(transaction, node)
    return NodeResult(status="sent")


async def closes(transaction: AsyncConnection, node: Node) -> NodeResult:
    await transaction.close()
    return NodeResult(status="sent")


async def commits_below(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    await transaction.run_sync(lambda connection: connection.commit())
    return NodeResult(status="sent")


async def ends_the_savepoint(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    savepoint = transaction.get_nested_transaction()
    assert savepoint is not None
    await savepoint.rollback()
    return NodeResult(status="sent")


async def leaves_a_savepoint(transaction: AsyncConnection, node: Node) -> NodeResult:
    await transaction.begin_nested()
    return await by_core(transaction, node)


async def has_no_table(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    await transaction.execute(text("INSERT INTO crm_nowhere (id) VALUES (1)"))
    return NodeResult(status="sent")


async def goes_on_after_an_error(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    try:
        await transaction.execute(text("SELECT 1 FROM crm_nowhere"))
    except Exception:  # noqa: BLE001
        await transaction.execute(text("SELECT 1 FROM crm_nowhere"))
    return NodeResult(status="sent")


async def violates(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    return await by_core(transaction, node)


async def raises_of_the_network(transaction: AsyncConnection, node: Node) -> NodeResult:
    await by_core(transaction, node)
    raise ConnectionResetError("by the CRM")


async def raises_a_timeout(transaction: AsyncConnection, node: Node) -> NodeResult:
    raise TimeoutError


async def is_cancelled_from_within(transaction: AsyncConnection, node: Node) -> NodeResult:
    raise asyncio.CancelledError


async def returns_something_else(transaction: AsyncConnection, node: Node) -> Any:
    await by_core(transaction, node)
    return {"status": "sent"}


ENDS = [commits, rolls_back, closes, commits_below]
"""Writes that end the transaction that they are given, or try to."""

FAULTS = [
    ends_the_savepoint,
    leaves_a_savepoint,
    has_no_table,
    goes_on_after_an_error,
    violates,
    raises_of_the_network,
    raises_a_timeout,
    is_cancelled_from_within,
    returns_something_else,
]


class TestWritesThatFail:
    @pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
    async def test_nothing_of_them_stays_and_the_hosts_transaction_can_be_used(
        self, database_url: str, fault: Any
    ) -> None:
        """What it wrote is gone, what the host wrote before and writes after is not, and nodes behind it run."""
        async with crm(database_url, writes(fault)) as run:
            walk = await run.record("faulty", "b")
            async with run.engine.connect() as connection:
                await connection.execute(insert(Contact).values(id="host, before"))
                found = await run.actions.reach(a_walk(), Node(id="now", type="crm"), connection)
                assert (found.status, found.reason, found.halt) == ("failed", "plugin_error", False)
                advanced = await run.actions.advance(walk, "s", connection)
                assert (advanced.state, ran(advanced)) == (
                    "unavailable",
                    [("faulty", "failed"), ("b", "queued")],
                )
                await connection.execute(insert(Contact).values(id="host, after"))
                await connection.commit()
            assert await run.ids() == ["host, after", "host, before"]
            assert await run.ids("flowactions_deferred WHERE ran_at IS NULL", "node_id") == ["faulty"]

    @pytest.mark.parametrize("fault", ENDS, ids=lambda fault: fault.__name__)
    async def test_one_that_ends_a_hosts_transaction_loses_it(self, database_url: str, fault: Any) -> None:
        """The node fails, the host's next statement raises, and nothing of either is there."""
        async with crm(database_url, writes(fault)) as run:
            for deferred in (False, True):
                walk = await run.record("faulty")
                async with run.engine.connect() as connection:
                    await connection.execute(insert(Contact).values(id="host, before"))
                    if deferred:
                        advanced = await run.actions.advance(walk, "s", connection)
                        assert ran(advanced) == [("faulty", "failed")]
                    else:
                        found = await run.actions.reach(a_walk(), Node(id="now", type="crm"), connection)
                        assert (found.status, found.reason) == ("failed", "plugin_error")
                    with pytest.raises(SQLAlchemyError):
                        await connection.execute(insert(Contact).values(id="host, after"))
                assert await run.ids() == []
            assert await run.ids("flowactions_deferred WHERE flow_id <> ''", "node_id") == ["faulty"] * 2

    @sampled("fault", [*FAULTS, *ENDS], size=5, ids=lambda fault: fault.__name__)
    async def test_they_are_tried_a_few_times_and_dropped(
        self, database_url: str, fault: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Between tries passes time in which nothing is leased; then the node is dropped, and nothing of it stays."""
        async with crm(database_url, writes(fault)) as run:
            walk = await run.record("faulty", "b")
            advanced = await run.actions.advance(walk, "s")
            assert (advanced.state, ran(advanced)) == ("done", [("faulty", "failed"), ("b", "queued")])
            for number in range(1, MAX_LEASES):
                assert run.plugin.runs == number
                assert await run.pacing.recover() == 0
                assert await run.actions.advance(walk, "s") == Advanced(state="done")
                await run.pass_time()
                assert await run.pacing.recover() == 1
            await run.pass_time()
            await run.pacing.recover()
            assert run.plugin.runs == MAX_LEASES
            assert await run.actions.advance(walk, "s") == Advanced(state="done")
            assert "deferred node faulty" in caplog.text
            assert await run.ids() == []


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", None])
async def test_an_end_fails_the_node(database_url: str, statement: str | None, deferred: bool) -> None:
    """As text it cannot be refused; it is found, the node fails, and the next node has a transaction of its own."""

    async def ends(transaction: AsyncConnection, node: Node) -> NodeResult:
        if node.id == "n" and statement is None:
            await transaction.commit()
        elif node.id == "n":
            await transaction.execute(text(str(statement)))
        return NodeResult(status="sent")

    async with crm(database_url, writes(ends)) as made:
        if deferred:
            walk = await made.record("n")
            advanced = await made.actions.advance(walk, "s")
            assert (advanced.state, ran(advanced)) == ("done", [("n", "failed")])
        else:
            assert (await made.actions.reach(a_walk(), Node(id="n", type="crm"))).reason == "plugin_error"
        assert (await made.actions.reach(a_walk(), Node(id="m", type="crm"))).status == "sent"


class TestReaches:
    async def test_one_that_raises_is_tried_a_few_times(self, database_url: str) -> None:
        """As one whose process ends; a node of the same step behind it is not tried again."""

        async def act(walk: Walk, node: Node) -> NodeResult:
            raise OSError("the CRM is away")

        async with crm(database_url, act) as run:
            walk = await run.record("faulty", "b")
            assert ran(await run.actions.advance(walk, "s")) == [("faulty", "failed"), ("b", "queued")]
            for _ in range(2 * MAX_LEASES):
                await run.pass_time()
                await run.pacing.recover()
            assert run.plugin.runs == MAX_LEASES
            assert len(await run.ids("flowactions_outbox")) == 1

    async def test_one_that_returns_a_wrong_type_has_run(
        self, database_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its effect is not repeated; the error names type and answer."""

        async def act(walk: Walk, node: Node) -> Any:
            return "sent"

        async with crm(database_url, act) as run:
            assert (await run.actions.reach(a_walk(), Node(id="n", type="crm"))).reason == "plugin_error"
            walk = await run.record("n")
            advanced = await run.actions.advance(walk, "s")
            assert (advanced.state, ran(advanced)) == ("done", [("n", "failed")])
            assert await run.actions.advance(walk, "s") == Advanced(state="done")
            assert run.plugin.runs == 2
        assert "reach of node type 'crm' must return a NodeResult, not a str" in caplog.text

    async def test_one_that_never_ends_is_cancelled(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After its time it fails, with and without a host's transaction, and those behind it run."""

        def shorten(seconds: float = 0.2) -> None:
            monkeypatch.setattr("flowactions_plugin.nodes.running.RUN_SECONDS", seconds)

        async def act(walk: Walk, node: Node) -> NodeResult:
            shorten(60)  # the one behind it has the time that it needs
            return await asyncio.Future()

        async with crm(database_url, act) as run:
            shorten()
            assert (await run.actions.reach(a_walk(), Node(id="n", type="crm"))).status == "failed"
            walk = await run.record("n", "b")
            shorten()
            assert ran(await run.actions.advance(walk, "s")) == [("n", "failed"), ("b", "queued")]
            walk = await run.record("n", "b")
            shorten()
            async with run.engine.connect() as connection:
                found = await run.actions.advance(walk, "s", connection)
                assert ran(found) == [("n", "failed"), ("b", "queued")]
                await connection.commit()

    async def test_one_that_is_cancelled_from_within_fails(self, database_url: str) -> None:
        """Nobody who called it is cancelled."""

        async def act(walk: Walk, node: Node) -> NodeResult:
            raise asyncio.CancelledError

        async with crm(database_url, act) as run:
            assert (await run.actions.reach(a_walk(), Node(id="n", type="crm"))).status == "failed"
            walk = await run.record("n", "b")
            assert ran(await run.actions.advance(walk, "s")) == [("n", "failed"), ("b", "queued")]

    async def test_a_caller_that_is_cancelled_leaves_no_lease(self, database_url: str) -> None:
        """What it leased is released, uncounted, and runs at the next call of the process."""
        begun = asyncio.Event()

        async def act(walk: Walk, node: Node) -> NodeResult:
            begun.set()
            if run.plugin.runs <= 2 * MAX_LEASES:
                await asyncio.Event().wait()
            return NodeResult(status="sent")

        async with crm(database_url, act) as run:
            walk = await run.record("n")
            for _ in range(2 * MAX_LEASES):
                begun.clear()
                call = asyncio.create_task(run.actions.advance(walk, "s"))
                await begun.wait()
                call.cancel()
                await asyncio.wait({call})
            assert ran(await run.actions.advance(walk, "s")) == [("n", "sent")]

    async def test_one_that_takes_longer_than_its_lease_runs_once(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The step's lease is renewed, so recovery begins neither it nor what is behind it; nor does one failure to renew end it."""
        monkeypatch.setattr("flowactions_plugin.nodes.pacing.RENEW_SECONDS", 0.1)
        renewed = asyncio.Event()
        renew = DeferredStore.renew
        calls = 0

        async def counting(self: DeferredStore, step: Any) -> bool:
            nonlocal calls
            calls += 1
            if calls == 8:
                renewed.set()
            try:
                if calls == 2:
                    raise StorageUnavailable("the database failed: for a moment")
                return await renew(self, step)
            finally:
                await run.age(LEASE_SECONDS / 3)  # the time until the next one, however long that takes here

        monkeypatch.setattr(DeferredStore, "renew", counting)

        async def act(walk: Walk, node: Node) -> NodeResult:
            await renewed.wait()
            return NodeResult(status="sent")

        async with crm(database_url, act) as run:
            walk = await run.record("m", "n")
            call = asyncio.create_task(run.actions.advance(walk, "s"))
            while not renewed.is_set():
                assert await another(run.pacing).recover() == 0
                await asyncio.sleep(0.01)
            assert ran(await call) == [("m", "sent"), ("n", "sent")]
            assert run.plugin.runs == 2

    async def test_a_renewal_beside_the_end_of_its_nodes_loses_nothing(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is left to renew, since the nodes have just run: their only caller gets ``done`` or ``halted``, never ``running``."""
        # The renewal comes when the test says so, and what it has ended may take long to return.
        monkeypatch.setattr("flowactions_plugin.nodes.pacing.LEASE_SECONDS", 2 * SAFETY_SECONDS)
        monkeypatch.setattr("flowactions_plugin.nodes.pacing.RENEW_SECONDS", SAFETY_SECONDS)
        renew, pop, write, sleep = DeferredStore.renew, DeferredStore.pop, Database.write, asyncio.sleep
        is_due, renewed, popped = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def sleeping(seconds: float) -> None:
            await (is_due.wait() if seconds == SAFETY_SECONDS else sleep(seconds))

        async def renewing(self: DeferredStore, step: Any) -> bool:
            is_due.clear()
            try:
                return await renew(self, step)
            finally:
                renewed.set()

        async def popping(self: DeferredStore, *given: Any) -> bool:
            popped.set()
            return await pop(self, *given)

        @asynccontextmanager
        async def writing(self: Database, *given: Any) -> AsyncIterator[Any]:
            async with write(self, *given) as connection:
                yield connection
            if popped.is_set():  # it is committed, and the node's caller does not know it yet
                popped.clear()
                renewed.clear()
                is_due.set()
                await renewed.wait()
                for _ in range(5):  # turns of the loop, in which a cancellation would arrive
                    await asyncio.sleep(0)

        monkeypatch.setattr(asyncio, "sleep", sleeping)
        monkeypatch.setattr(DeferredStore, "renew", renewing)
        monkeypatch.setattr(DeferredStore, "pop", popping)
        monkeypatch.setattr(Database, "write", writing)

        async def act(walk: Walk, node: Node) -> Any:
            result = NodeResult(status="sent", halt=walk.content == "halts")

            async def written(_: AsyncConnection) -> NodeResult:
                return result

            return InTransaction(written) if node.id == "durable" else result

        async with crm(database_url, act) as run:
            for name, content, state in (
                ("durable", "", "done"),
                ("other", "", "done"),
                ("durable", "halts", "halted"),
            ):
                walk = await run.record(name, walk=a_walk(content=content))
                found = await run.actions.advance(walk, "s")
                assert (found.state, ran(found)) == (state, [(name, "sent")])

    @pytest.mark.parametrize(
        ("meanwhile", "state"),
        [("leased", "running"), ("run", "done"), ("halted", "halted"), ("removed", "done")],
    )
    async def test_who_has_lost_its_lease_answers_what_became_of_its_nodes(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch, meanwhile: str, state: str
    ) -> None:
        """``running`` only while another process has them; what has begun is ended."""
        monkeypatch.setattr("flowactions_plugin.nodes.pacing.RENEW_SECONDS", 0.01)
        begun, ended, changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        renew = DeferredStore.renew

        async def renewing(self: DeferredStore, step: Any) -> bool:
            await changed.wait()
            return await renew(self, step)

        monkeypatch.setattr(DeferredStore, "renew", renewing)

        async def act(walk: Walk, node: Node) -> NodeResult:
            if not begun.is_set():
                begun.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()
            return NodeResult(status="sent", halt=meanwhile == "halted")

        async with crm(database_url, act) as run:
            walk = await run.record("n")
            call = asyncio.create_task(run.actions.advance(walk, "s"))
            await begun.wait()
            await run.pass_time()
            if meanwhile == "leased":
                assert (await another(run.pacing)._store.lease(step_of(walk, "s"))).records
            elif meanwhile == "removed":
                async with run.engine.begin() as connection:
                    await connection.execute(text("DELETE FROM flowactions_deferred"))
            else:
                assert await another(run.pacing).recover() == 1
            changed.set()
            found = await call
            assert (found.state, ran(found), ended.is_set()) == (state, [], True)
