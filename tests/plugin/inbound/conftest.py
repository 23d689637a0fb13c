from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowactions_hookspecs import FlowActions
from tests.auth_provider import NEW, OLD, Running
from tests.support import SmallHost, development
from tests.telemetry import Recorded


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture
async def run(database_url: str, recorded: Recorded) -> AsyncIterator[Running]:
    host = SmallHost(development(database_url, AUTH_WEBHOOK_SIGNING_SECRET=f"{NEW}, {OLD}"))
    recorded.listen_to(host)
    actions = FlowActions.load(host)
    async with actions.lifespan():
        running = Running(host, actions)
        async with running.client:
            yield running
