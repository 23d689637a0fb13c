from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.plugin.deliveries.running import Running
from tests.plugin.nodes import running as hosting
from tests.support import SmallHost, development


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    async with hosting.running(SmallHost(development(database_url))) as started:
        yield Running(started.host, started.actions, started.receiver, started.client)
