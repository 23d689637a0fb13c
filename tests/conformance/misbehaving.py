"""Hosts that do not do their part: the kit has to end in time, and to say what is wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from flowactions_conformance import Env, HostDriver, Login, Turn, World, one_host_per_process
from flowactions_conformance.kit.registry import PROFILES
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.testing import ReferenceDriver

PRINTED_MEGABYTES = 200


async def empty_app(scope: Any, receive: Any, send: Any) -> None:
    """Starts, and answers nothing but 404."""
    if scope["type"] == "lifespan":
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def never_starting_app(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


async def failing_app(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    raise LookupError("no such table: flows")


class Idle(HostDriver):
    """Has every method, and does nothing."""

    claims = frozenset(PROFILES)
    app = staticmethod(empty_app)

    async def seed(self, world: World) -> Mapping[str, str]:
        return {}

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        return []

    async def open(self, flow: str, user: str, content: str) -> Turn:
        return Turn(session="s", step_id="x")

    async def next(self, session: str, step: str | None = None) -> Turn:
        return Turn(session="s", step_id="x")

    def headers(self, who: Login) -> Mapping[str, str]:
        return {}


class HangsLater(Idle):
    """Only once the checks run."""

    seeded = 0

    async def seed(self, world: World) -> Mapping[str, str]:
        self.seeded += 1
        if self.seeded > 1:
            await asyncio.sleep(1e6)
        return {}


class ExitsLater(Idle):
    """A task of the host exits, after the preflight: its event loop ends."""

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        asyncio.get_running_loop().call_later(0.2, sys.exit, 3)
        return []


class NotAHost:
    app = staticmethod(empty_app)


class NeverStarts(Idle):
    app = staticmethod(never_starting_app)


class FailsToStart(Idle):
    app = staticmethod(failing_app)


def _making(kind: type) -> Any:
    @asynccontextmanager
    async def make_host(env: Env) -> AsyncIterator[Any]:
        yield kind()

    return make_host


def _seeding(act: Callable[[], Any]) -> Any:
    """Make a host that does something, and may wait, when its data is written."""

    class Seeding(Idle):
        async def seed(self, world: World) -> Mapping[str, str]:
            if (done := act()) is not None:
                await done
            return {}

    return _making(Seeding)


fails_everything = _making(Idle)
hangs_async = _seeding(partial(asyncio.sleep, 1e6))
hangs_blocking = _seeding(partial(time.sleep, 1e6))
hangs_later = _making(HangsLater)
exits = _seeding(partial(sys.exit, 3))
exits_later = _making(ExitsLater)
exits_process = one_host_per_process(_seeding(partial(os._exit, 3)))
no_host = _making(NotAHost)
bare = _making(HostDriver)
nothing = _making(lambda: None)  # type: ignore[arg-type]
never_starts = _making(NeverStarts)
fails_to_start = _making(FailsToStart)


@asynccontextmanager
async def raises(env: Env) -> AsyncIterator[Any]:
    raise ConnectionError("the queue at \x1b[31mamqp://\udce9 does not answer\n\nsecond line")
    yield


@asynccontextmanager
async def exits_at_once(env: Env) -> AsyncIterator[Any]:
    raise SystemExit("no licence")
    yield


@asynccontextmanager
async def never_made(env: Env) -> AsyncIterator[Any]:
    await asyncio.sleep(1e6)
    yield


async def no_context_manager(env: Env) -> Any:
    return Idle()


class Healthy(ReferenceDriver):
    claims = frozenset()


def _reference(env: Env) -> ReferenceDriver:
    return Healthy(create_app(env.settings, env.state_dir / "reference-host.db"), env)


class EndsUnread(Idle):
    """Its process ends in ``open``, as soon as it is told; until then it reads nothing of what the kit sends."""

    def __init__(self, env: Env) -> None:
        self._folder = env.state_dir

    async def open(self, flow: str, user: str, content: str) -> Turn:
        (self._folder / "blocked").touch()
        while not (self._folder / "end").exists():
            time.sleep(0.01)  # noqa: ASYNC251
        os._exit(0)


@one_host_per_process
@asynccontextmanager
async def ends_unread(env: Env) -> AsyncIterator[EndsUnread]:
    yield EndsUnread(env)


class LogsContent(Idle):
    """Logs what its end user says."""

    async def open(self, flow: str, user: str, content: str) -> Turn:
        logging.getLogger("host").error("%s", content)
        return await super().open(flow, user, content)


@asynccontextmanager
async def logs_content(_env: Env) -> AsyncIterator[LogsContent]:
    yield LogsContent()


class Paced(Healthy):
    claims = frozenset({"pacing"})


@asynccontextmanager
async def answers_late_once(env: Env) -> AsyncIterator[Paced]:
    """The plugin gives up its first question for a node."""
    driver = Paced(create_app(env.settings, env.state_dir / "reference-host.db"), env)
    host: Any = driver.made.host
    answer, waits = host.node, [1e6]

    async def node(*ids: str) -> Any:
        if waits:
            await asyncio.sleep(waits.pop())
        return await answer(*ids)

    host.node = node
    yield driver


@asynccontextmanager
async def hangs_at_stop(env: Env) -> AsyncIterator[ReferenceDriver]:
    yield _reference(env)
    await asyncio.sleep(1e6)


@asynccontextmanager
async def prints(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Prints 200 MB, as lines and as one line without an end, and is healthy."""
    lines = "x" * 99 + "\n"
    for stream in (sys.stdout, sys.stderr):
        for _ in range(PRINTED_MEGABYTES // 4):
            stream.write(lines * 10_000)
            stream.write("y" * 1_000_000)
    yield _reference(env)


@asynccontextmanager
async def leaves_thread(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Leaves a thread that keeps an interpreter from ending."""
    threading.Thread(target=time.sleep, args=(1e6,), name="left").start()
    yield _reference(env)


@one_host_per_process
@asynccontextmanager
async def alone_in_its_process(env: Env) -> AsyncIterator[ReferenceDriver]:
    """A host of which one process has one only: whether it has a second one is seen at its start."""
    if ALONE:
        raise RuntimeError("this process has a host already")
    ALONE.append(env.base_url)
    yield ReferenceDriver(create_app(env.settings, env.database_url), env)


ALONE: list[str] = []


raises_as_child, never_starts_as_child, hangs_at_stop_as_child, logs_content_as_child = (
    one_host_per_process(partial(each)) for each in (raises, never_starts, hangs_at_stop, logs_content)
)
