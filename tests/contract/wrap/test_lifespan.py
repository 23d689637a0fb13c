"""The lifespan around a wrapped app: the app starts first and stops last, and either side's failure is told."""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from flowactions_conformance.serving import listen, serve, url_of
from flowactions_hookspecs import AlreadyStarted, StartFailed
from tests.contract.wrap.bare_host import BareHost, bare
from tests.contract.wrap.django_host import django_host
from tests.contract.wrap.probe import Probe, loaded
from tests.contract.wrap.quart_host import quart
from tests.contract.wrap.starlette_hosts import fastapi, starlette
from tests.rings import sampled
from tests.waiting import until

WITH_LIFESPAN: dict[str, Callable[..., Any]] = {
    "fastapi": fastapi,
    "starlette": starlette,
    "quart": quart,
    "bare": bare,
}
IN_ORDER = ["host started", "plugin started", "plugin stopped", "host stopped"]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The errors that hosts raise on purpose are not logged, in this test."""
    loggers = [logging.getLogger(name) for name in ("host", "quart.app", "flowactions")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


class Server:
    """The server's side of the lifespan, a message at a time."""

    def __init__(self, app: Any, **scope: Any) -> None:
        self.scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}, **scope}
        self.sent: list[Any] = []
        self._messages: asyncio.Queue[Any] = asyncio.Queue()
        self._app = app
        self.running: asyncio.Task[None] | None = None

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def startup(self) -> Any:
        """Give the answer; ``None`` when the app ended without one."""
        self.running = asyncio.create_task(self._app(self.scope, self._messages.get, self.send))
        return await self._ask("startup")

    async def shutdown(self) -> Any:
        return await self._ask("shutdown")

    async def _ask(self, step: str) -> Any:
        known = len(self.sent)
        assert self.running is not None
        self._messages.put_nowait({"type": f"lifespan.{step}"})
        await until(lambda: len(self.sent) > known or self.running.done())  # type: ignore[union-attr]
        return self.sent[-1] if len(self.sent) > known else None

    async def ended(self) -> None:
        """Wait until the app has returned; raises what it raised."""
        assert self.running is not None
        await asyncio.wait_for(self.running, 300)


def wrapped(
    host: str, directory: Path, events: list[str], *, host_fails: str = "", plugin_fails: str = ""
) -> Server:
    actions = loaded(directory, Probe(events, fails=plugin_fails))
    return Server(WITH_LIFESPAN[host](actions.wrap, events, host_fails))


@sampled("host", WITH_LIFESPAN, size=2)
class TestInEveryFramework:
    async def test_the_host_starts_first_and_stops_last(self, host: str, tmp_path: Path) -> None:
        """The server hears of each once both sides are done."""
        events: list[str] = []
        server = wrapped(host, tmp_path, events)
        assert (await server.startup())["type"] == "lifespan.startup.complete"
        assert events == IN_ORDER[:2]
        assert (await server.shutdown())["type"] == "lifespan.shutdown.complete"
        await server.ended()
        assert events == IN_ORDER
        assert len(server.sent) == 2

    async def test_a_host_that_fails_to_start_says_it_as_before(self, host: str, tmp_path: Path) -> None:
        """The same message and the same exception as without the plugins, which are not started."""
        told = []
        given: list[list[str] | None] = [[], None]
        for events in given:
            if events is None:
                server = Server(WITH_LIFESPAN[host](None, [], "start"))
            else:
                server = wrapped(host, tmp_path, events, host_fails="start")
            answer = await server.startup()
            assert answer["type"] == "lifespan.startup.failed"
            assert "the host cannot start" in answer["message"]
            raised = await _end_of(server)
            told.append((answer["message"].splitlines()[-1], raised, events or []))
        assert told[0] == told[1]

    async def test_a_plugin_that_fails_to_start_stops_the_host(self, host: str, tmp_path: Path) -> None:
        """The host stops in its own way before the server is told why; nothing is left running."""
        events: list[str] = []
        server = wrapped(host, tmp_path, events, plugin_fails="start")
        answer = await server.startup()
        assert answer["type"] == "lifespan.startup.failed"
        assert "'Probe'" in answer["message"]
        assert "the probe cannot start" in answer["message"]
        assert events == ["host started", "host stopped"]
        with pytest.raises(StartFailed, match="the probe cannot start"):
            await server.ended()
        assert len(server.sent) == 1

    async def test_a_plugin_that_fails_to_start_and_a_host_that_fails_to_stop(
        self, host: str, tmp_path: Path
    ) -> None:
        """The server is told why nothing started."""
        server = wrapped(host, tmp_path, [], plugin_fails="start", host_fails="stop")
        answer = await server.startup()
        assert answer["type"] == "lifespan.startup.failed"
        assert "the probe cannot start" in answer["message"]
        await _end_of(server)
        assert len(server.sent) == 1

    @pytest.mark.parametrize(
        ("who", "said"), [("host", "the host cannot stop"), ("plugin", "the probe cannot stop")]
    )
    async def test_who_fails_to_stop_is_told_and_keeps_nobody(
        self, host: str, who: str, said: str, tmp_path: Path
    ) -> None:
        """If a host fails to stop, plugins are stopped first, and the server gets the host's message. A plugin's comes after it."""
        events: list[str] = []
        server = wrapped(host, tmp_path, events, **{f"{who}_fails": "stop"})
        await server.startup()
        answer = await server.shutdown()
        assert answer["type"] == "lifespan.shutdown.failed"
        assert said in answer["message"]
        assert "plugin stopped" in events if who == "host" else events == IN_ORDER

    async def test_without_lifespan_the_messages_pass_untouched(self, host: str, tmp_path: Path) -> None:
        """``lifespan=False``: only the host starts and stops."""
        events: list[str] = []
        actions = loaded(tmp_path, Probe(events))
        server = Server(WITH_LIFESPAN[host](lambda app: actions.wrap(app, lifespan=False), events))
        assert (await server.startup())["type"] == "lifespan.startup.complete"
        assert (await server.shutdown())["type"] == "lifespan.shutdown.complete"
        await server.ended()
        assert events == ["host started", "host stopped"]

    async def test_a_server_that_gives_up_leaves_nothing_open(self, host: str, tmp_path: Path) -> None:
        """The lifespan's task is cancelled: the plugins are closed nevertheless, and can be opened again."""
        events: list[str] = []
        actions = loaded(tmp_path, Probe(events))
        server = Server(WITH_LIFESPAN[host](actions.wrap, events))
        await server.startup()
        assert server.running is not None
        server.running.cancel()
        await asyncio.wait({server.running})
        assert events[:3] == IN_ORDER[:3]
        async with actions.lifespan():
            pass


async def test_it_runs_again(tmp_path: Path) -> None:
    """A second run of the same wrapped app, after the first has ended, is like the first."""
    events: list[str] = []
    server = wrapped("starlette", tmp_path, events)
    for _ in range(2):
        assert (await server.startup())["type"] == "lifespan.startup.complete"
        assert (await server.shutdown())["type"] == "lifespan.shutdown.complete"
        await server.ended()
    assert events == IN_ORDER * 2


async def _end_of(server: Server) -> str:
    """Give what the app raised; an app that waits for more, as Quart does after a failure, is cancelled."""
    assert server.running is not None
    for _ in range(20):  # counted, so that a pause of this process is one of them
        await asyncio.wait({server.running}, timeout=0.01)
    if not server.running.done():
        server.running.cancel()
        await asyncio.wait({server.running})
        return "waits"
    return repr(server.running.exception())


class TestApps:
    """What apps do with the lifespan's scope."""

    async def test_one_without_a_lifespan_gets_one(self, tmp_path: Path) -> None:
        """Django raises on the scope's type; the plugins are started and stopped all the same."""
        events: list[str] = []
        server = Server(django_host(loaded(tmp_path, Probe(events)).wrap))
        assert await server.startup() == {"type": "lifespan.startup.complete"}
        assert await server.shutdown() == {"type": "lifespan.shutdown.complete"}
        await server.ended()
        assert events == ["plugin started", "plugin stopped"]

    @pytest.mark.parametrize("reads", [True, False])
    @pytest.mark.parametrize("raises", [True, False])
    async def test_one_that_ends_without_an_answer_gets_one(
        self, reads: bool, raises: bool, tmp_path: Path
    ) -> None:
        """Whether it read the message or not, and whether it raised or returned; as servers go on then."""
        events: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if reads:
                await receive()
            if raises:
                raise KeyError("path")

        server = Server(loaded(tmp_path, Probe(events)).wrap(app))
        assert await server.startup() == {"type": "lifespan.startup.complete"}
        assert await server.shutdown() == {"type": "lifespan.shutdown.complete"}
        await server.ended()
        assert events == ["plugin started", "plugin stopped"]

    async def test_one_without_a_lifespan_beside_plugins_that_cannot_start(self, tmp_path: Path) -> None:
        """The server is told why."""
        server = Server(django_host(loaded(tmp_path, Probe(fails="start")).wrap))
        answer = await server.startup()
        assert answer["type"] == "lifespan.startup.failed"
        assert "the probe cannot start" in answer["message"]
        with pytest.raises(StartFailed):
            await server.ended()

    async def test_one_that_leaves_after_its_start_keeps_the_plugins(self, tmp_path: Path) -> None:
        """They stay until the server's shutdown."""
        events: list[str] = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "lifespan.startup.complete"})

        server = Server(loaded(tmp_path, Probe(events)).wrap(app))
        await server.startup()
        assert events == ["plugin started"]
        assert await server.shutdown() == {"type": "lifespan.shutdown.complete"}
        assert events == ["plugin started", "plugin stopped"]

    async def test_one_that_fails_while_it_runs_is_passed_on(self, tmp_path: Path) -> None:
        """Its exception is the server's to handle, unchanged; the plugins are closed."""
        events: list[str] = []
        fail = asyncio.Event()
        error = OSError("while it ran")

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await fail.wait()
            raise error

        server = Server(loaded(tmp_path, Probe(events)).wrap(app))
        await server.startup()
        fail.set()
        with pytest.raises(OSError, match="while it ran") as raised:
            await server.ended()
        assert raised.value is error
        assert events == ["plugin started", "plugin stopped"]

    async def test_messages_that_nobody_knows_are_passed_on(self, tmp_path: Path) -> None:
        """What an app sends beside the four, and what its answers hold besides, arrives."""
        more = {"type": "lifespan.startup.complete", "note": "more"}

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "lifespan.note"})
            await send(more)
            await receive()
            await send({"type": "lifespan.shutdown.complete", "note": "more"})

        server = Server(loaded(tmp_path).wrap(app))
        await server.startup()
        await until(lambda: more in server.sent)
        await server.shutdown()
        await server.ended()
        assert server.sent == [
            {"type": "lifespan.note"},
            more,
            {"type": "lifespan.shutdown.complete", "note": "more"},
        ]

    async def test_the_lifespans_scope_and_state_are_the_servers(self, tmp_path: Path) -> None:
        """What the host's lifespan puts into the state is in the server's own dictionary."""
        server = Server(starlette(loaded(tmp_path).wrap))
        await server.startup()
        assert server.scope["state"] == {"pool": "from the lifespan"}
        await server.shutdown()
        await server.ended()


class TestByHand:
    async def test_twice_is_a_clear_error(self, tmp_path: Path) -> None:
        """A host that opens the plugins in its own lifespan, and wraps with one, is told which of the two to drop."""
        actions = loaded(tmp_path)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            async with actions.lifespan():
                await BareHost([], "")(scope, receive, send)

        server = Server(actions.wrap(app))
        answer = await server.startup()
        assert answer["type"] == "lifespan.startup.failed"
        assert "lifespan=False" in answer["message"]
        with pytest.raises(AlreadyStarted, match="lifespan=False"):
            await server.ended()
        server = Server(actions.wrap(app, lifespan=False))
        assert (await server.startup())["type"] == "lifespan.startup.complete"
        await server.shutdown()
        await server.ended()

    async def test_a_server_without_lifespan(self, tmp_path: Path) -> None:
        """Routes say that nothing is started, until the lifespan is entered by hand."""
        actions = loaded(tmp_path)
        transport = httpx.ASGITransport(app=fastapi(actions.wrap))
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            assert (await client.get("/v1/webhooks/outbox")).json()["code"] == "not_started"
            async with actions.lifespan():
                assert (await client.get("/v1/webhooks/outbox")).json()["code"] == "unauthorized"

    @pytest.mark.parametrize("make", [django_host, fastapi])
    async def test_a_server_that_sends_none_is_named_once_in_the_log(
        self, make: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """At the first request, whosever it is; Uvicorn with ``--lifespan off`` in front of Django and FastAPI."""
        caplog.set_level(logging.ERROR, "flowactions")
        actions = loaded(tmp_path)
        async with (
            without_lifespan(make(actions.wrap)) as url,
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=300) as client,
        ):
            for _ in range(2):
                assert (await client.get("/items/7")).status_code == 200
            (said,) = told(caplog)
            assert "--lifespan off" in said
            assert "lifespan=False" in said
            assert (await client.get("/v1/webhooks/outbox")).json()["code"] == "not_started"
            assert told(caplog) == [said]

    async def test_a_lifespan_that_is_open_is_not_missed(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """By the server, by hand, or where the host has said that it enters it itself."""
        caplog.set_level(logging.ERROR, "flowactions")
        actions = loaded(tmp_path)
        async with (
            serve(django_host(actions.wrap)) as url,
            httpx.AsyncClient(trust_env=False, timeout=300) as client,
        ):
            assert (await client.get(f"{url}/items/7")).status_code == 200
        app = django_host(actions.wrap)
        async with (
            actions.lifespan(),
            without_lifespan(app) as url,
            httpx.AsyncClient(trust_env=False, timeout=300) as client,
        ):
            assert (await client.get(f"{url}/items/7")).status_code == 200
        app = actions.wrap(django_host(None), lifespan=False)
        async with without_lifespan(app) as url, httpx.AsyncClient(trust_env=False, timeout=300) as client:
            assert (await client.get(f"{url}/items/7")).status_code == 200
        assert told(caplog) == []


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Give the lines that a lifespan is missing."""
    return [
        record.getMessage()
        for record in caplog.records
        if getattr(record, "event", "") == "wrap.no_lifespan_sent"
    ]


@asynccontextmanager
async def without_lifespan(app: Any) -> AsyncIterator[str]:
    """Serve by Uvicorn with ``--lifespan off``."""
    listener = listen()
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started)
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        await running


def test_the_frameworks_test_client_runs_both(tmp_path: Path) -> None:
    """Starlette's test client opens and closes the plugins, and fails when they do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it would rather have another client than httpx
        from starlette.testclient import TestClient  # noqa: PLC0415  so that the warning is this test's
    events: list[str] = []
    with TestClient(fastapi(loaded(tmp_path, Probe(events)).wrap, events)) as client:
        assert client.get("/v1/webhooks/outbox", headers={"x-user": "ada"}).json()["data"] == []
        assert client.get("/who").json()["pool"] == "from the lifespan"
    assert events == IN_ORDER
    with (
        pytest.raises(StartFailed, match="the probe cannot start"),
        TestClient(fastapi(loaded(tmp_path, Probe(fails="start")).wrap)),
    ):
        pass
