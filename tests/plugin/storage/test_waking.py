"""How often the background parts of a process wake while nothing happens."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowactions_plugin.bulk import engine
from flowactions_plugin.bulk.actions import Actions
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.storage.outages import TOGETHER_SECONDS, together
from tests.pausing import ACME, MAYA
from tests.queueing import Queue


async def test_parts_of_a_process_wake_at_the_same_moments() -> None:
    """Each wakes an idle process otherwise; short waits are as they are, and processes differ."""
    assert together(0.3) == 0.3
    clock, places = asyncio.get_running_loop().time, list[float]()
    for seconds in (TOGETHER_SECONDS, 1.3, 5.0, 3600.0):
        wait = together(seconds)
        places.append((clock() + wait) / TOGETHER_SECONDS)
        assert abs(wait - seconds) <= TOGETHER_SECONDS / 2 + 1e-9
    assert max(abs(math.remainder(each - places[0], 1)) for each in places) < 0.1


async def test_an_action_is_looked_for_less_often_while_none_is_open(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look costs an idle worker more than it finds."""
    waits: list[float] = []

    async def once(work: Callable[[], Awaitable[float]], *_: Any) -> None:
        waits.append(await work())

    monkeypatch.setattr(engine, "keep_on", once)
    await engine.actions_loop(queue.database)
    await queue.put()
    await queue.run("UPDATE flowactions_outbox SET status = 'dead', finished_at = created_at - 1000")
    preview = await Actions(queue.database).preview(ACME, "retry", Filter())
    await Actions(queue.database).begin(ACME, "retry", preview.token, MAYA, "", delay_seconds=0)
    await engine.actions_loop(queue.database)
    idle, busy = waits
    assert idle == engine.IDLE_POLL_SECONDS
    assert busy <= engine.POLL_SECONDS < idle
