"""The parent's side of `tests.crash.actor`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.crash.forking import Forked, fork

ANSWER_BYTES = 1 << 22

AT_ONCE = 4
"""Processes."""


class Actor:
    """A host in a process of its own."""

    def __init__(self, process: Forked) -> None:
        self.process = process

    async def ask(self, **what: Any) -> Any:
        """Have something done, and give its answer."""
        reply = await self._say(what)
        assert reply is not None, "the process is gone"
        return reply["answer"]

    async def points(self, **what: Any) -> int:
        """Have something done, and tell how many points there were to die at."""
        reply = await self._say(what)
        assert reply is not None, "the process is gone"
        points: int = reply["points"]
        return points

    async def die(self, point: int, **what: Any) -> None:
        """Have something done that ends at a point of it."""
        assert await self._say({**what, "kill": point}) is None
        assert await self.process.wait() == -signal.SIGKILL

    async def _say(self, what: Mapping[str, Any]) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what).encode() + b"\n")
        await self.process.stdin.drain()
        async with asyncio.timeout(300):
            line = await self.process.stdout.readline()
        return json.loads(line) if line else None


@asynccontextmanager
async def actors(settings: Mapping[str, str], count: int) -> AsyncIterator[list[Actor]]:
    """Start so many processes that share a database."""
    environment = {**os.environ, **settings, "FLOWACTIONS_HOST_WORKER": "off"}
    started: list[Actor] = []
    try:
        for _ in range(count):
            process = await fork("tests.crash.actor", environment=environment, limit=ANSWER_BYTES)
            started.append(Actor(process))
        for actor in started:
            assert actor.process.stdout is not None
            async with asyncio.timeout(300):
                assert await actor.process.stdout.readline() == b"{}\n", "the process did not start"
        yield started
    finally:
        for actor in started:
            if actor.process.returncode is None:
                actor.process.kill()
            await actor.process.wait()
            assert actor.process.stdin is not None
            actor.process.stdin.close()


async def advance(actor: Actor, walk: Mapping[str, Any], step: str | None, times: int = 1) -> Any:
    """Advance so many times at once."""
    return await actor.ask(do="advance", walk=walk, step=step, times=times)


async def die_at_each(
    settings: Mapping[str, str], points: int, what: Callable[[int], Mapping[str, Any]]
) -> None:
    """Have something done by a process for each point, numbered from 1, which ends there."""
    for first in range(1, points + 1, AT_ONCE):
        some = range(first, min(first + AT_ONCE, points + 1))
        async with actors(settings, len(some)) as doomed:
            for actor, point in zip(doomed, some, strict=True):
                await actor.die(point, **what(point))


async def advance_and_die(settings: Mapping[str, str], walks: Sequence[Mapping[str, Any]]) -> None:
    """Advance each run to step s in a process that ends at another point of it: the first run's at the first point."""
    await die_at_each(
        settings, len(walks), lambda point: {"do": "advance", "walk": walks[point - 1], "step": "s"}
    )
