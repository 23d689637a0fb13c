from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import (
    BackgroundTask,
    ExperienceTriggerRef,
    FlowActions,
    HostInvalid,
    Node,
    NodeDraft,
    NotStarted,
    StartFailed,
    WrongLoop,
    hookimpl,
)
from flowactions_plugin.queue import executor
from flowactions_plugin.services import Services
from tests.owning import engine_of, own_webhook
from tests.rings import sampled
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import until

NODE = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/"})
DRAFT = NodeDraft(organization_id="acme", agent_id="a", node=NODE)
REF = ExperienceTriggerRef(
    organization_id="acme", agent_id="a", experience_id="e", trigger_row_id="t", action_index=0
)

CALLS: dict[str, Any] = {
    "reach": lambda actions: actions.reach(a_walk(), NODE),
    "advance": lambda actions: actions.advance(a_walk(), "s"),
    "dispatch": lambda actions: actions.dispatch(REF, firing_id="f", occurred_at=datetime.now(UTC)),
    "enqueue": lambda actions: actions.enqueue(own_webhook()),
    "prepare": lambda actions: actions.prepare(own_webhook()),
    "check": lambda actions: actions.check(DRAFT),
    "preview": lambda actions: actions.preview(DRAFT, a_walk()),
    "test": lambda actions: actions.test(DRAFT, a_walk()),
}


@pytest.fixture
def quiet(database_url: str) -> SmallHost:
    return SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))


class TestLoops:
    @pytest.mark.parametrize("call", CALLS)
    async def test_each_call_needs_the_lifespan_and_its_loop(self, tmp_path: Any, call: str) -> None:
        """NotStarted before and after, WrongLoop from another loop; both say what to do."""
        actions = FlowActions.load(SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}")))
        with pytest.raises(NotStarted, match="lifespan"):
            await CALLS[call](actions)
        async with actions.lifespan(tasks=False):
            with pytest.raises(WrongLoop, match=r"actions\.call"):
                await asyncio.to_thread(asyncio.run, CALLS[call](actions))
        with pytest.raises(NotStarted):
            await CALLS[call](actions)

    def test_it_can_be_opened_again_in_another_loop(self, quiet: SmallHost) -> None:
        """asyncio.run twice: each call works in each, and what was written is there."""
        actions = FlowActions.load(quiet)

        async def use() -> list[str]:
            async with actions.lifespan():
                receipts = await asyncio.gather(
                    *(actions.enqueue(own_webhook(idempotency_key=f"k{number}")) for number in range(5))
                )
                results = await asyncio.gather(*(actions.reach(a_walk(), NODE) for _ in range(5)))
                assert {result.status for result in results} == {"queued"}
                return [receipt.status for receipt in receipts]

        assert asyncio.run(use()) == ["queued"] * 5
        assert asyncio.run(use()) == ["duplicate"] * 5

    @pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
    def test_its_tasks_work_in_each_loop(self, database_url: str, delivery: str) -> None:
        """Deliveries leave in the second loop as in the first."""
        host = SmallHost(development(database_url, FLOWACTIONS_DELIVERY=delivery))
        actions = FlowActions.load(host)

        async def use(number: int) -> None:
            async with actions.lifespan():
                await actions.enqueue(own_webhook(max_attempts=1))
                await until(lambda: len(host.finished) == number)

        asyncio.run(use(1))
        asyncio.run(use(2))

    async def test_without_tasks_none_run(self, database_url: str) -> None:
        """lifespan(tasks=False) opens what plugins need and starts no task of any plugin."""
        began: list[str] = []

        async def run() -> None:
            began.append("task")
            await asyncio.Event().wait()

        class Plugin:
            __name__ = "third"

            @hookimpl
            def flowactions_background_tasks(self) -> list[BackgroundTask]:
                return [BackgroundTask(name="third", run=run)]

            @hookimpl
            def flowactions_lifespan(self) -> Any:
                @asynccontextmanager
                async def opened() -> AsyncIterator[None]:
                    began.append("opened")
                    yield

                return opened

        host = SmallHost(development(database_url))
        actions = FlowActions.load(host, plugins=[Plugin()])
        async with actions.lifespan(tasks=False):
            names = {task.get_name() for task in asyncio.all_tasks()}
            await actions.enqueue(own_webhook(max_attempts=1))
            await asyncio.sleep(0.2)
            assert host.finished == []
        assert began == ["opened"]
        assert not any(name.startswith("flowactions") for name in names)
        async with actions.lifespan():
            await until(lambda: host.finished)
        assert began == ["opened", "opened", "task"]


async def test_the_runtime_is_opened_before_a_plugin_that_asks_to_be_first(database_url: str) -> None:
    """Its tables are there when any other plugin opens, and until it has closed."""
    host = SmallHost(development(database_url))
    rows: list[int] = []

    async def count() -> None:
        async with services_of(host)._database.read() as connection:
            rows.append(
                (await connection.execute(text("SELECT count(*) FROM flowactions_outbox"))).scalar_one()
            )

    class Plugin:
        __name__ = "a-first"

        @hookimpl(tryfirst=True)
        def flowactions_lifespan(self) -> Any:
            @asynccontextmanager
            async def opened() -> AsyncIterator[None]:
                await count()
                yield
                await count()

            return opened

    async with FlowActions.load(host, plugins=[Plugin()]).lifespan(tasks=False):
        assert rows == [0]
    assert rows == [0, 0]


class TestThreads:
    async def test_a_threads_call_gives_the_result(self, quiet: SmallHost) -> None:
        """Many threads at once, on both databases."""
        actions = FlowActions.load(quiet)
        async with actions.lifespan():
            receipts = await asyncio.gather(
                *(asyncio.to_thread(lambda: actions.call(actions.enqueue(own_webhook()))) for _ in range(8))
            )
        assert [receipt.status for receipt in receipts] == ["queued"] * 8
        assert len({receipt.delivery_id for receipt in receipts}) == 8

    async def test_what_it_raises_is_raised(self, quiet: SmallHost) -> None:
        """The exception is the coroutine's own, a TimeoutError of its own included."""
        actions = FlowActions.load(quiet)

        async def times_out() -> None:
            raise TimeoutError("of its own")

        async with actions.lifespan():
            with pytest.raises(ValueError, match=r"webhook\.entity"):
                await asyncio.to_thread(lambda: actions.call(actions.enqueue(own_webhook(entity=""))))
            with pytest.raises(TimeoutError, match="of its own"):
                await asyncio.to_thread(lambda: actions.call(times_out(), timeout=300))
            with pytest.raises(TypeError, match="needs a coroutine, not function"):
                await asyncio.to_thread(lambda: actions.call(lambda: None))  # type: ignore[arg-type]

    async def test_a_timeout_cancels_the_coroutine(self, quiet: SmallHost) -> None:
        """TimeoutError in the thread, and the coroutine ends."""
        actions = FlowActions.load(quiet)
        hangs = asyncio.Event().wait()

        async with actions.lifespan():
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(lambda: actions.call(hangs, timeout=0.05))
            await until(lambda: inspect.getcoroutinestate(hangs) == inspect.CORO_CLOSED)

    async def test_closing_the_lifespan_ends_waiting_calls(self, quiet: SmallHost) -> None:
        """The thread is told NotStarted, and is not left waiting."""
        actions = FlowActions.load(quiet)
        waiting = threading.Event()

        async def hangs() -> None:
            waiting.set()
            await asyncio.Event().wait()

        async with actions.lifespan():
            call = asyncio.create_task(asyncio.to_thread(lambda: actions.call(hangs())))
            await asyncio.to_thread(waiting.wait, 300)
        with pytest.raises(NotStarted, match="closed before the call had ended"):
            await asyncio.wait_for(call, 300)

    async def test_the_loops_own_thread_is_told_to_await(self, quiet: SmallHost) -> None:
        """It would wait for itself for ever."""
        actions = FlowActions.load(quiet)
        async with actions.lifespan():
            with pytest.raises(WrongLoop, match="await the coroutine instead"):
                actions.call(actions.enqueue(own_webhook()))

    async def test_before_and_after_the_lifespan(self, quiet: SmallHost) -> None:
        """NotStarted, and no coroutine is left behind that was never awaited."""
        actions = FlowActions.load(quiet)
        for _ in range(2):
            with pytest.raises(NotStarted):
                await asyncio.to_thread(lambda: actions.call(actions.enqueue(own_webhook())))
            async with actions.lifespan():
                pass

    def test_a_loop_that_has_ended_is_told(self, quiet: SmallHost) -> None:
        """A call after asyncio.run has ended is NotStarted as well."""
        actions = FlowActions.load(quiet)

        async def open_and_leave() -> None:
            async with actions.lifespan():
                pass

        asyncio.run(open_and_leave())
        with pytest.raises(NotStarted):
            actions.call(actions.enqueue(own_webhook()))


class TestWhatIsReadWhenItOpens:
    async def test_the_engine_may_be_made_after_load(self, database_url: str, tmp_path: Any) -> None:
        """A host whose engine comes in its own startup: everything goes to that database, whatever its dialect."""
        host = SmallHost(development(f"sqlite:///{tmp_path / 'unused.db'}"))
        actions = FlowActions.load(host)
        host.database = engine_of(database_url)
        async with actions.lifespan():
            async with host.database.begin() as connection:
                receipt = await actions.enqueue(own_webhook(max_attempts=1, idempotency_key="k"), connection)
                assert (await actions.reach(a_walk(), NODE, connection)).status == "queued"
            await until(lambda: len(host.finished) == 2)
            async with host.database.connect() as connection:
                ids = (await connection.execute(text("SELECT id FROM flowactions_outbox"))).scalars().all()
        assert receipt.delivery_id in ids
        assert not (tmp_path / "unused.db").exists()
        await host.database.dispose()

    @pytest.mark.parametrize("order", [("sqlite", "postgresql"), ("postgresql", "sqlite")])
    @sampled("delivery", ["scheduled", "continuous"], size=1)
    async def test_another_opening_may_have_another_database(
        self,
        postgres_url: str,
        tmp_path: Any,
        monkeypatch: pytest.MonkeyPatch,
        order: tuple[str, str],
        delivery: str,
    ) -> None:
        """Every statement is that of the database that is open: claims, outcomes and returns included."""
        monkeypatch.setattr(executor, "WAIT_FIRST_SECONDS", 0.3)
        urls = {"sqlite": f"sqlite:///{tmp_path / 'f.db'}", "postgresql": postgres_url}
        host = SmallHost(development(urls[order[0]], FLOWACTIONS_DELIVERY=delivery))
        actions = FlowActions.load(host)
        for dialect in order:
            host.finished.clear()
            host.database = engine_of(urls[dialect])
            async with actions.lifespan():
                assert actions.plugin_state(Services)._database.dialect == dialect
                host.secret_error = ZeroDivisionError()
                await actions.enqueue(own_webhook(max_attempts=1))

                async def waits() -> Any:
                    assert host.database is not None
                    async with host.database.connect() as connection:
                        query = "SELECT waiting_since FROM flowactions_outbox WHERE waiting_since IS NOT NULL"
                        return (await connection.execute(text(query))).first()

                await until(waits)
                host.secret_error = None
                await actions.enqueue(own_webhook(max_attempts=1))
                await until(lambda: host.finished)
            await host.database.dispose()

    async def test_a_database_in_memory_is_refused_when_it_comes_late(self, tmp_path: Any) -> None:
        """The error of the start names Host.database and what to give instead, as that of load does."""
        host = SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}"))
        actions = FlowActions.load(host)
        host.database = create_async_engine("sqlite+aiosqlite://")
        with pytest.raises((HostInvalid, StartFailed), match=r"Host\.database is an SQLite database in memory"):
            async with actions.lifespan():
                pass
        host.database = None
        async with actions.lifespan():
            assert (await actions.enqueue(own_webhook())).status == "queued"

    async def test_the_transport_may_be_set_before_the_lifespan(self, database_url: str) -> None:
        """Deliveries leave by the transport that the host has when its lifespan opens."""
        host = SmallHost(development(database_url))
        actions = FlowActions.load(host)
        host.transport = httpx.MockTransport(lambda _request: httpx.Response(204))
        async with actions.lifespan():
            await actions.enqueue(own_webhook())
            await until(lambda: host.finished)
        assert host.finished[0].status_code == 204
