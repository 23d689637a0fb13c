from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowactions_hookspecs import FlowActions
from tests.plugin.deliveries.running import Running
from tests.recorder import recorder
from tests.support import SmallHost, development


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    host = SmallHost(development(database_url))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        running = Running(host, actions, receiver)
        async with running.client:
            yield running
