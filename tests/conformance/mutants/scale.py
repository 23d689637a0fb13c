"""Mutants of hosts with several processes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from flowactions_conformance import Env
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.store import Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Step, Turn
from flowactions_hookspecs import Advanced, Walk
from tests.conformance.mutants.mutant import changed, mutant


@asynccontextmanager
async def tasks_in_the_first(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Has a database for each process, and runs tasks only in the first."""
    driver = ReferenceDriver(create_app(env.settings, env.state_dir / f"{env.incarnation}.db"), env)
    if env.incarnation > 1:
        lifespans: list[Any] = driver.made.app._lifespan_managers
        lifespans.remove(driver.made.actions.lifespan)
        lifespans.append(lambda _: driver.made.actions.lifespan(tasks=False))
    yield driver


def _locks_in_memory(driver: ReferenceDriver) -> None:
    actions = driver.made.actions
    advance, locks = actions.advance, defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def locked(walk: Walk, step_id: str | None, transaction: Any = None) -> Advanced:
        async with locks[walk.run_id]:
            advanced = await advance(walk, step_id, transaction)
            running = advanced.state == "running"
            return msgspec.structs.replace(advanced, state="done") if running else advanced

    actions.advance = locked  # type: ignore[method-assign]


def _leaves_a_mark(driver: ReferenceDriver) -> None:
    folder = Path(driver.made.host.store.engine.url.database or "").parent
    go_on = driver.made.walker.next

    async def marked(run: Run, from_step: str | None) -> Turn:
        mark = folder / f"busy-{run.id}"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return Turn(run.session, Step(from_step, "", "") if from_step else None, [], run.done)
        try:
            return await go_on(run, from_step)
        finally:
            mark.unlink()

    driver.made.walker.next = marked  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "tasks-in-the-first-process",
        "Each process has a database of its own, and only the first runs tasks.",
        tasks_in_the_first,
        kills="SCALE-1 SCALE-3",
        spares="LOAD-1 TASK-1",
        message="not all of 200 webhooks that were queued in two processes have arrived",
    ),
    mutant(
        "locks-in-memory",
        "Who else runs a step is known by a lock in memory, and 'running' is taken for 'done'.",
        changed(_locks_in_memory),
        kills="SCALE-2",
        spares="PACING-2",
        message="a caller was let past a node that another process still runs",
    ),
    mutant(
        "leaves-a-mark",
        "A run is marked as busy while it goes on, and a process that is killed leaves the mark.",
        changed(_leaves_a_mark),
        kills="SCALE-4",
        spares="PACING-2",
        message="nobody removes it",
    ),
]
