"""Leases of deferred nodes, and what an advance answers: done, running or halted (§3.2)."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import Advanced, Deferred, Node, NodeResult, NodeType, Walk
from flowactions_hookspecs.nodes import AdvancedState
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.nodes import pacing
from flowactions_plugin.nodes.running import NodeRunner
from flowactions_plugin.nodes.store import MAX_LEASES, DeferredStore, Record, step_of
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.pacing import URL, Paced, another, paced, ran
from tests.support import a_walk
from tests.waiting import until


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Paced]:
    async with paced(database_url) as made:
        yield made


async def away(*_: Any) -> Any:
    raise StorageUnavailable("the database failed: it is away")


class TestStates:
    async def test_those_that_do_not_run_the_nodes_are_told_so(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the winner runs, the others get running and never done; after it, done (or, with a halt, halted)."""
        ends: tuple[tuple[bool, AdvancedState], ...] = ((False, "done"), (True, "halted"))
        for halts, end in ends:
            walk = a_walk()
            await run.record(walk, "first")
            await run.record(walk, "last", halts=halts)
            begun, go = asyncio.Event(), asyncio.Event()
            prepare = Outbox.new_delivery

            async def slowly(
                self: Outbox, webhook: Any, begun: Any = begun, go: Any = go, prepare: Any = prepare
            ) -> Any:
                begun.set()
                await go.wait()
                return await prepare(self, webhook)

            with monkeypatch.context() as patched:
                patched.setattr(Outbox, "new_delivery", slowly)
                winner = asyncio.create_task(run.actions.advance(walk, "s"))
                await begun.wait()
                for process in (run.pacing, another(run.pacing)):
                    assert await process.advance(walk, "s") == Advanced(state="running")
                go.set()
                advanced = await winner
            assert (advanced.state, ran(advanced)) == (end, ["first", "last"])
            assert await run.actions.advance(walk, "s") == Advanced(state=end)

    async def test_a_halt_is_remembered_for_every_step_of_its_run_only(self, run: Paced) -> None:
        """Later steps are halted, also those that nothing waited for; other flows and runs are not."""
        walk = a_walk()
        other_flow = replace(walk, flow_id="flow-2")
        await run.record(walk, "stop", halts=True)
        await run.record(walk, "late", step="t")
        await run.record(other_flow, "other", step="t")
        assert (await run.actions.advance(walk, "s")).state == "halted"
        for step in ("s", "t", "never", None):
            assert await run.actions.advance(walk, step) == Advanced(state="halted")
        assert ran(await run.actions.advance(other_flow, "t")) == ["other"]
        assert (await run.actions.advance(replace(walk, organization_id="globex"), "t")).state == "done"
        assert await run.query("SELECT node_id FROM flowactions_deferred WHERE ran_at IS NULL") == []

    async def test_a_node_that_is_reached_in_a_halted_run_never_runs(self, run: Paced) -> None:
        """It is skipped and says halt, so that a walk that is repeated stops as well."""
        walk = a_walk()
        await run.record(walk, "stop", halts=True)
        await run.actions.advance(walk, "s")
        result = await run.record(walk, "late", step="t")
        assert (result.status, result.reason, result.halt) == ("skipped", "run_halted", True)
        assert await run.query("SELECT node_id FROM flowactions_deferred WHERE ran_at IS NULL") == []

    async def test_the_memory_of_halts_is_pruned_like_abandoned_runs(self, run: Paced) -> None:
        """After the days of retention, it is gone."""
        for name in ("old", "new"):
            walk = a_walk(run_id=name)
            await run.record(walk, "stop", halts=True)
            await run.actions.advance(walk, "s")
        await run.run("UPDATE flowactions_halted_runs SET halted_at = 0 WHERE run_id = 'old'")
        for prune in run.services._prunes():
            await prune(100)
        assert await run.query("SELECT run_id FROM flowactions_halted_runs") == [("new",)]

    async def test_nothing_of_a_run_stays_in_memory(self, run: Paced) -> None:
        """However many users walk: their walks and records are the database's once their step has run."""
        walk = a_walk()
        run_id = walk.run_id
        await run.record(walk, "a")
        assert ran(await run.actions.advance(walk, "s")) == ["a"]
        await run.actions.reach(walk, Node(id="b", type="webhook", config={"webhookUrl": URL}))
        del walk
        gc.collect()
        kept = [each for each in gc.get_objects() if type(each) in {Walk, Record}]
        assert [each for each in kept if run_id in repr(each)] == []

    async def test_flows_of_one_run_are_apart(self, run: Paced) -> None:
        """A host whose flows share a run id and names of steps and nodes advances them one by one."""
        walks = [a_walk(run_id="r", flow_id=flow) for flow in ("a", "b")]
        for walk in walks:
            assert (await run.record(walk, "n")).status == "recorded"
        assert len(await run.query("SELECT id FROM flowactions_deferred")) == 2
        assert ran(await run.actions.advance(walks[0], "s")) == ["n"]
        assert ran(await run.actions.advance(walks[0], "s")) == []
        assert ran(await run.actions.advance(walks[1], "s")) == ["n"]

    async def test_each_visit_of_a_node_is_a_record_and_an_event(self, run: Paced) -> None:
        """A loop that comes by twice before a step fires twice, in order; a walk that is repeated does not."""
        walk = a_walk()
        for _ in range(2):
            for visit in ("1", "2", "10"):
                await run.record(replace(walk, visit=visit), "n")
        advanced = await run.actions.advance(replace(walk, agent_id="", visit=""), "s")
        assert ran(advanced) == ["n", "n", "n"]
        events = await run.query("SELECT DISTINCT event_id FROM flowactions_outbox")
        assert len(events) == 3

    async def test_nodes_run_with_the_walk_as_recorded(self, run: Paced) -> None:
        """Agent, user, content, visit and the node's version are those of the reach, not of the walk that advances; also what UTF-8 cannot hold."""
        walk = a_walk(agent_id="then", user_id="u then", content="c then \ud800", visit="7")
        pacing = run.offering("fax")
        recorded = replace(walk, pacing=Deferred(None))
        await pacing.reach(recorded, Node(id="n", type="fax", version=3))
        seen: list[Walk] = []
        versions: list[int] = []

        async def record(walk: Walk, node: Node) -> NodeResult:
            seen.append(walk)
            versions.append(node.version)
            return NodeResult(status="sent")

        noting = {"fax": NodeType(name="fax", title="Fax", description="Faxes.", reach=record)}
        pacing._node_types = lambda: noting
        now = replace(walk, agent_id="now", user_id="u", content="c", visit="8")
        assert (await pacing.advance(now, None)).state == "done"
        assert (seen, versions) == ([recorded], [3])


class TestTheDatabaseFails:
    @pytest.mark.parametrize("method", ["lease", "pop", "find"])
    async def test_what_did_not_run_runs_at_the_next_call(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Results hold what ran; nothing is run twice, and no waiting for a lease is needed once it is back."""
        walk = a_walk()
        for name in "abc":
            await run.record(walk, name)
        real = getattr(DeferredStore, method)
        calls = 0

        async def failing(self: Any, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > (1 if method == "pop" else 0):
                raise StorageUnavailable("the database failed: it is away")
            return await real(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(DeferredStore, method, failing)
            first = await run.actions.advance(walk, "s")
        assert (first.state, ran(first)) == ("done", ["a"] if method == "pop" else [])
        second = await run.actions.advance(walk, "s")
        assert second.state == "done"
        assert ran(first) + ran(second) == ["a", "b", "c"]
        assert len(await run.query("SELECT id FROM flowactions_outbox")) == 3

    @pytest.mark.parametrize("method", ["find", "pop"])
    async def test_the_plugin_repeats_what_it_could_not_read_or_run(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        """The host moves on, and calls for the step no more; it is told what has run."""
        # Each repetition begins when the test says so: one that began before the database was back could end after that.
        rounds, next_one, sleep = 0, asyncio.Event(), asyncio.sleep

        async def sleeping(seconds: float) -> None:
            nonlocal rounds
            if seconds == pacing.REPEAT_SECONDS:
                rounds += 1
                next_one.clear()
                await next_one.wait()
            else:
                await sleep(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleeping)
        walk, other = a_walk(), a_walk()
        for each in (walk, other):
            await run.record(each, "a")
        with monkeypatch.context() as patched:
            patched.setattr(DeferredStore, method, away)
            for each in (walk, walk, other):
                assert await run.actions.advance(each, "s") == Advanced(state="done")
            await until(lambda: rounds == 1)
            next_one.set()
            await until(lambda: rounds == 2)
        next_one.set()
        await until(lambda: len(run.host.told) == 2)
        told = [(each.run_id, step, ran(advanced)) for each, step, advanced in run.host.told]
        assert told == [(walk.run_id, "s", ["a"]), (other.run_id, "s", ["a"])]

    @pytest.mark.parametrize("halts", [False, True])
    async def test_steps_of_a_run_keep_their_order(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch, halts: bool
    ) -> None:
        """A later step is not run before one that could not be read, nor after its halt; one that nobody got to is not run."""
        walk = a_walk()
        for name, step in (("a", "s"), ("b", "t"), ("c", "u"), ("d", "never")):
            await run.record(walk, name, step=step, halts=halts and name == "a")
        with monkeypatch.context() as patched:
            patched.setattr(DeferredStore, "find", away)
            for step in ("s", "t"):
                assert await run.actions.advance(walk, step) == Advanced(state="done")
        advanced = await run.actions.advance(walk, "u")
        assert (advanced.state, ran(advanced)) == (("halted", ["a"]) if halts else ("done", ["a", "b", "c"]))

    @pytest.fixture
    def slow(self, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
        """Have the node a, once begun, wait: an event that it has begun, and one for it to go on."""
        began, goes_on, run_record = asyncio.Event(), asyncio.Event(), NodeRunner.run_record

        async def slow(self: NodeRunner, node_type: NodeType, record: Record, *given: Any) -> None:
            if record.node_id == "a":
                began.set()
                await goes_on.wait()
            await run_record(self, node_type, record, *given)

        monkeypatch.setattr(NodeRunner, "run_record", slow)
        return began, goes_on

    async def test_what_is_repeated_waits_for_an_earlier_step_that_the_user_runs(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch, slow: tuple[asyncio.Event, asyncio.Event]
    ) -> None:
        """They came back to it while both were pending."""
        walk, (began, goes_on) = a_walk(), slow
        await run.record(walk, "a")
        await run.record(walk, "b", step="t")
        with monkeypatch.context() as patched:
            patched.setattr(DeferredStore, "find", away)
            for step in ("s", "t"):
                assert await run.actions.advance(walk, step) == Advanced(state="done")
        advancing = asyncio.create_task(run.actions.advance(walk, "s"))
        await began.wait()
        await run.pacing._repeat()
        assert run.host.told == []
        goes_on.set()
        assert ran(await advancing) == ["a"]
        assert ran(await run.actions.advance(walk, "t")) == ["b"]

    @pytest.mark.parametrize("halts", [False, True])
    async def test_a_later_step_waits_for_one_that_is_being_repeated(
        self,
        run: Paced,
        monkeypatch: pytest.MonkeyPatch,
        slow: tuple[asyncio.Event, asyncio.Event],
        halts: bool,
    ) -> None:
        """`advance` answers ``running``, so the user stays: a node of the earlier step may halt the run."""
        monkeypatch.setattr(pacing, "REPEAT_SECONDS", 0.01)
        walk, (began, goes_on) = a_walk(), slow
        await run.record(walk, "a", halts=halts)
        await run.record(walk, "b", step="t")
        with monkeypatch.context() as patched:
            patched.setattr(DeferredStore, "find", away)
            assert await run.actions.advance(walk, "s") == Advanced(state="done")
        await began.wait()
        assert await run.actions.advance(walk, "t") == Advanced(state="running")
        goes_on.set()
        await until(lambda: run.host.told)
        advanced = await run.actions.advance(walk, "t")
        assert (advanced.state, ran(advanced)) == (("halted", []) if halts else ("done", ["b"]))

    @pytest.mark.parametrize("by", ["the user", "the user at the earlier step", "the repeating"])
    async def test_a_step_does_not_overtake_one_that_fails_once_more(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch, by: str
    ) -> None:
        """The database lets an earlier step of the run be read and not run, for a moment: what is behind it waits for it."""
        walk, pop, failures = a_walk(), DeferredStore.pop, 2
        for name, step in (("a", "s"), ("b", "t"), ("c", "u")):
            await run.record(walk, name, step=step)

        async def popping(self: DeferredStore, *given: Any) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise StorageUnavailable("the database failed: for a moment")
            return await pop(self, *given)

        monkeypatch.setattr(DeferredStore, "pop", popping)
        for step in ("s", "t"):
            assert await run.actions.advance(walk, step) == Advanced(state="done")
        failures = 1
        if by == "the user at the earlier step":
            failures = 0
            assert ran(await run.actions.advance(walk, "s")) == ["a"]
            assert ran(await run.actions.advance(walk, "u")) == ["b", "c"]
        elif by == "the user":
            assert await run.actions.advance(walk, "u") == Advanced(state="done")
            assert ran(await run.actions.advance(walk, None)) == ["a", "b", "c"]
        else:
            await run.pacing._repeat()
            assert run.host.told == []
            await run.pacing._repeat()
            assert [step for _, step, _ in run.host.told] == ["s", "t"]

    async def test_the_end_of_the_process_is_a_last_attempt(
        self, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What it cannot read either is told; its records stay, and a restarted host runs them when it advances again."""
        walk = a_walk()
        for fails in (True, False):
            async with paced(database_url) as run:
                await run.record(walk, "a")
                monkeypatch.setattr(DeferredStore, "find", away)
                assert await run.actions.advance(walk, "s") == Advanced(state="done")
                if not fails:
                    monkeypatch.undo()
            monkeypatch.undo()
            assert "_keep_repeating" not in repr(asyncio.all_tasks())
            assert ("1 steps could not be read until the end" in caplog.text) is fails
            assert [ran(advanced) for _, _, advanced in run.host.told] == ([] if fails else [["a"]])
            caplog.clear()

    async def test_a_lost_answer_to_a_lease_blocks_nobody(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The records were leased and nobody knew; the next call of the process leases them again, uncounted."""
        walk = a_walk()
        await run.record(walk, "a")
        lease = DeferredStore.lease

        async def cut(self: DeferredStore, *arguments: Any) -> Any:
            await lease(self, *arguments)
            raise StorageUnavailable("the database failed: the answer was cut")

        for _ in range(2 * MAX_LEASES):
            with monkeypatch.context() as patched:
                patched.setattr(DeferredStore, "lease", cut)
                assert (await run.actions.advance(walk, "s")).state == "done"
            assert await run.pacing.recover() == 0
        assert ran(await run.actions.advance(walk, "s")) == ["a"]
        assert await run.query("SELECT body FROM flowactions_outbox") == [(b'"a"',)]

    async def test_a_failure_of_the_database_does_not_count(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However often it fails in the middle, a node whose process lives is not dropped."""
        walk = a_walk()
        await run.record(walk, "a")

        for _ in range(2 * MAX_LEASES):
            with monkeypatch.context() as patched:
                patched.setattr(DeferredStore, "pop", away)
                assert (await run.actions.advance(walk, "s")).state == "done"
        assert ran(await run.actions.advance(walk, "s")) == ["a"]

    async def test_who_has_seen_an_older_lease_looks_again(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process had the step in between: its lease counts, before it is decided whether the node is dropped."""
        walk = a_walk()
        await run.record(walk, "a")
        step, slow = step_of(walk, "s"), run.killed()
        seen = await slow.find(step, None)
        assert (await run.killed().lease(step)).records
        await run.expire()

        async def find(*_: Any) -> Any:
            return seen

        with monkeypatch.context() as patched:
            patched.setattr(slow, "find", find)
            assert (await slow.lease(step)).state == "running"
        assert (await slow.lease(step)).records

    async def test_only_the_first_record_counts_leases(
        self, run: Paced, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A node whose processes all ended is dropped; what stands behind it runs."""
        walk = a_walk()
        for name in ("poison", "b", "c"):
            await run.record(walk, name)
        for _ in range(MAX_LEASES):
            assert (await run.killed().lease(step_of(walk, "s"))).records
            await run.expire()
        assert sorted(
            await run.query("SELECT node_id, holds FROM flowactions_deferred WHERE ran_at IS NULL")
        ) == [
            ("b", 0),
            ("c", 0),
            ("poison", MAX_LEASES),
        ]
        await run.expire()
        assert [await run.pacing.recover() for _ in range(2)] == [1, 0]
        ((_, _, advanced),) = run.host.told
        assert (advanced.state, ran(advanced)) == ("done", ["b", "c"])
        assert "node poison of run" in caplog.text


class TestTypesNotOffered:
    async def test_they_wait_in_walk_order_for_a_process_that_offers_them(self, run: Paced) -> None:
        """Before it runs, behind it waits; nothing of that counts, and the other process goes on by itself."""
        walk = a_walk()
        both = run.offering("webhook", "fax")
        await run.record(walk, "a")
        recorded = replace(walk, pacing=Deferred("s"))
        assert (await both.reach(recorded, Node(id="f", type="fax"))).status == "recorded"
        await run.record(walk, "z")
        first = await run.actions.advance(walk, "s")
        assert (first.state, ran(first)) == ("done", ["a"])
        for _ in range(2 * MAX_LEASES):
            assert await run.actions.advance(walk, "s") == Advanced(state="done")
            assert await run.pacing.recover() == 0
        assert await run.query("SELECT holds FROM flowactions_deferred WHERE holds > 0") == []
        assert await both.recover() == 1
        assert await run.query("SELECT id FROM flowactions_deferred WHERE ran_at IS NULL") == []
        assert await run.actions.advance(walk, "s") == Advanced(state="done")
        bodies = await run.query("SELECT body FROM flowactions_outbox ORDER BY id")
        assert bodies == [(b'"a"',), (b'"z"',)]

    async def test_an_advance_of_the_other_process_runs_them_too(self, run: Paced) -> None:
        """It need not wait for recovery, and reports all in walk order."""
        walk = a_walk()
        both = run.offering("webhook", "fax")
        recorded = replace(walk, pacing=Deferred("s"))
        await both.reach(recorded, Node(id="f", type="fax"))
        await run.record(walk, "z", halts=True)
        assert await run.actions.advance(walk, "s") == Advanced(state="done")
        advanced = await both.advance(walk, "s")
        assert (advanced.state, ran(advanced)) == ("halted", ["f", "z"])
        assert await run.actions.advance(walk, "s") == Advanced(state="halted")

    async def test_a_step_that_nobody_got_to_waits_for_its_user(self, run: Paced) -> None:
        """Only steps that were advanced to are looked after."""
        walk = replace(a_walk(), pacing=Deferred("s"))
        both = run.offering("webhook", "fax")
        await both.reach(walk, Node(id="f", type="fax"))
        assert await both.recover() == 0

    async def test_what_a_killed_process_leased_is_recovered_by_type(self, run: Paced) -> None:
        """Leased by a process that offered all and is gone: the one that does not is not blocked, the one that does goes on."""
        both = run.offering("webhook", "fax")
        for number in range(30):
            walk = a_walk(run_id=f"mixed-{number}")
            recorded = replace(walk, pacing=Deferred("s"))
            await both.reach(recorded, Node(id="f", type="fax"))
            await run.record(walk, "w")
            assert (await both._store.lease(step_of(walk, "s"))).records
        plain = a_walk(run_id="plain")
        await run.record(plain, "w")
        await run.killed().lease(step_of(plain, "s"))
        await run.expire()
        await run.run("UPDATE flowactions_deferred SET held_until = 2 WHERE run_id = 'plain'")
        for _ in range(3):
            await run.pacing.recover()
        assert (
            await run.query("SELECT id FROM flowactions_deferred WHERE run_id = 'plain' AND ran_at IS NULL")
            == []
        )
        # It comes by them no more.
        assert await run.store.expired(100) == []
        while await both.recover():
            pass
        assert await run.query("SELECT id FROM flowactions_deferred WHERE ran_at IS NULL") == []
        assert len(await run.query("SELECT id FROM flowactions_outbox")) == 31


class TestRecovery:
    async def test_the_steps_that_have_waited_the_longest_are_first(self, run: Paced) -> None:
        """So many at once."""
        for number in range(3):
            walk = a_walk(run_id=f"run-{number}")
            await run.record(walk, "w")
            await run.killed().lease(step_of(walk, "s"))
            waited = "UPDATE flowactions_deferred SET held_until = :at WHERE run_id = :run"
            await run.run(waited, at=9 - number, run=walk.run_id)
        assert [step.run_id for step in await run.store.expired(2)] == ["run-2", "run-1"]

    async def test_the_host_is_told_what_recovery_ran(self, run: Paced) -> None:
        """With the walk as recorded, the step and its result; a halt is remembered for the next advance."""
        for step, halts, state in (("s", False, "done"), (None, True, "halted")):
            walk = a_walk(visit="3")
            await run.record(walk, "a", step=step)
            await run.record(walk, "b", step=step, halts=halts)
            await run.killed().lease(step_of(walk, step))
            await run.expire()
            assert await run.pacing.recover() == 1
            told_walk, told_step, advanced = run.host.told.pop()
            assert (told_walk, told_step) == (replace(walk, pacing=Deferred(step)), step)
            assert (advanced.state, ran(advanced)) == (state, ["a", "b"])
            assert (await run.actions.advance(walk, step)).state == state
        assert run.host.told == []

    async def test_a_host_that_fails_to_take_note_blocks_nobody(
        self, run: Paced, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """What it raises is logged, and it may not take long."""
        monkeypatch.setattr("flowactions_plugin.nodes.pacing.HOST_SECONDS", 0.05)

        async def broken() -> None:
            raise ZeroDivisionError

        for tell in (broken, partial(asyncio.sleep, 3600)):
            run.host.tell = tell
            walk = a_walk()
            await run.record(walk, "a")
            await run.killed().lease(step_of(walk, "s"))
            await run.expire()
            assert await run.pacing.recover() == 1
        assert caplog.text.count("Telling.nodes_recovered failed") == 2


class TestInTheHostsTransaction:
    async def test_a_halt_belongs_to_the_hosts_transaction(self, database_url: str) -> None:
        """Rolled back, it never was; while the transaction is open, others do not walk past it."""
        url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
        engine = create_async_engine(url)
        async with Database(url):
            pass
        async with paced(database_url, database=engine) as run:
            walk = a_walk()
            await run.record(walk, "stop", halts=True)
            for commits in (False, True):
                async with engine.connect() as connection:
                    advanced = await run.actions.advance(walk, "s", connection)
                    assert (advanced.state, ran(advanced)) == ("halted", ["stop"])
                    assert (await run.actions.advance(walk, "t", connection)).state == "halted"
                    if run.database.dialect == "postgresql":
                        assert (await run.actions.advance(walk, "s")).state == "running"
                    await (connection.commit() if commits else connection.rollback())
            assert (await run.actions.advance(walk, "t")).state == "halted"
        await engine.dispose()
