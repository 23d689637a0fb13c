"""The reference host with eager runs in one transaction of its own, which the nodes' rows join."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from flowactions_conformance import Env
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.store import Flow, Run
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_conformance.reference_host.walker import Turn


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Makes it."""
    driver = ReferenceDriver(create_app(env.settings, env.database_url), env)
    store, walker = driver.made.host.store, driver.made.walker
    open_paced = walker.open

    async def opening(flow: Flow, user_id: str, content: str) -> Turn:
        if flow.kind == "client_paced":
            return await open_paced(flow, user_id, content)
        run = Run(
            id=uuid4().hex,
            session=secrets.token_hex(),
            flow=flow,
            user_id=user_id,
            content=content,
            opened_at=time.time(),
            position=-1,
            done=True,
        )
        async with store.transaction() as connection:
            await store.start_run(run, connection)
            return await walker._walk_through(run, connection)

    walker.open = opening  # type: ignore[method-assign]
    yield driver
