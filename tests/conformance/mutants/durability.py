"""Mutants of what has to outlive a process."""

from __future__ import annotations

import base64
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import delete

from flowactions_conformance import Env
from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.store import Flow, Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Turn
from flowactions_hookspecs import Node, NodeResult, Origin, Walk
from tests.conformance.mutants.mutant import changed, mutant


@asynccontextmanager
async def new_key(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Has a new encryption key at each start but the first, whose settings the kit compares with those it gave."""
    settings = dict(env.settings)
    if env.incarnation > 1:
        settings["FLOWACTIONS_ENCRYPTION_KEYS"] = base64.b64encode(secrets.token_bytes(32)).decode()
    yield ReferenceDriver(create_app(settings, env.database_url), env)


def _sessions_written_at_stop(driver: ReferenceDriver) -> None:
    file = Path(f"{driver.made.host.store.engine.url.database}.sessions")
    sessions = set(file.read_text().split()) if file.exists() else set[str]()

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        yield
        file.write_text(" ".join(sessions))

    driver.made.app._lifespan_managers.append(lifespan)
    _keep_sessions(driver, sessions)


def _keep_sessions(driver: ReferenceDriver, sessions: set[str]) -> None:
    store = driver.made.host.store
    start, find = store.start_run, store.run

    async def start_run(run: Run, connection: Any) -> None:
        sessions.add(run.session)
        await start(run, connection)

    async def run(session: str) -> Run | None:
        return await find(session) if session in sessions else None

    store.start_run, store.run = start_run, run  # type: ignore[method-assign]


def _sends_before_it_commits(driver: ReferenceDriver) -> None:
    made, failing = driver.made, [False]
    walk_through = made.walker.open

    async def fail_commit() -> None:
        failing[0] = True

    async def opening(flow: Flow, user_id: str, content: str) -> Turn:
        turn = await walk_through(flow, user_id, content)
        if failing[0]:
            failing[0] = False
            async with made.host.store.engine.begin() as connection:
                await connection.execute(delete(tables.runs).where(tables.runs.c.session == turn.session))
            raise RuntimeError("the commit failed")
        return turn

    made.walker.open = opening  # type: ignore[method-assign]
    driver.fail_commit = fail_commit  # type: ignore[method-assign]


def _rolls_back_for_a_plugin(driver: ReferenceDriver) -> None:
    reach = driver.made.actions.reach

    async def strict(walk: Walk, node: Node, transaction: Any = None) -> NodeResult:
        result = await reach(walk, node, transaction)
        if result.reason == "plugin_error":
            raise RuntimeError(result.message)
        return result

    driver.made.actions.reach = strict  # type: ignore[method-assign]


def _unsigned_during_an_outage(driver: ReferenceDriver) -> None:
    host = driver.made.host
    ask = host.signing_secret

    async def signing_secret(origin: Origin) -> str | None:
        try:
            return await ask(origin)
        except RuntimeError:
            return None

    host.signing_secret = signing_secret  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "new-encryption-key",
        "The encryption key is made when the process starts.",
        new_key,
        kills="DURABILITY-1",
        spares="TASK-3",
        message="each start makes a new encryption key",
    ),
    mutant(
        "sessions-written-at-stop",
        "Which sessions there are is written when the host stops.",
        changed(_sessions_written_at_stop),
        kills="DURABILITY-2",
        spares="DURABILITY-1",
        message="what the host has written is kept back until it stops",
    ),
    mutant(
        "sends-before-it-commits",
        "Nodes are reached outside of the transaction that keeps the run.",
        changed(_sends_before_it_commits),
        kills="DURABILITY-3",
        spares="EAGER-2",
        message="the commit of a run failed, but its webhook was sent",
    ),
    mutant(
        "rolls-back-for-a-plugin",
        "A plugin's failure is taken for one of the host.",
        changed(_rolls_back_for_a_plugin),
        kills="HALT-1",
        spares="DURABILITY-3 EAGER-1 EAGER-2",
        message="rolls back or answers an error",
    ),
    mutant(
        "unsigned-during-an-outage",
        "A secret that cannot be read is none.",
        changed(_unsigned_during_an_outage),
        kills="DURABILITY-5",
        spares="DURABILITY-3 EAGER-6",
        message="a webhook was sent unsigned while the host's database failed",
    ),
]
