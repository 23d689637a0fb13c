"""What a host leaves open when it stops: nothing, whatever it was about to do."""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions, Node
from tests.chatting import chat_host
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

STARTS = range(1, 13, 3)


def sockets() -> int:
    """Count this process's sockets; what only the collector would close counts as open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208  names only, and some are gone by the time
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")  # noqa: PTH115
        except OSError:
            continue
    return count


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("delivery", ["scheduled", "continuous"])
async def test_a_host_that_stops_leaves_no_connection(
    database_url: str, delivery: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is started and stopped at any moment of its work: of opening its database, of sending, of listening."""
    monkeypatch.chdir(tmp_path)
    gc.collect()
    gc.disable()
    try:
        async with recorder() as receiver:
            before = sockets()
            for number in STARTS:
                settings = development(database_url, FLOWACTIONS_DELIVERY=delivery)
                actions = FlowActions.load(SmallHost(settings))
                async with actions.lifespan():
                    node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url})
                    await asyncio.gather(*(actions.reach(a_walk(), node) for _ in range(number)))
                    await asyncio.sleep(number * 0.004)
            await until(lambda: sockets() <= before + 1)  # the event loop's own for other threads
    finally:
        gc.enable()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="there is no /proc here")
@pytest.mark.ci
async def test_nor_does_the_chat_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's session ends with the host."""
    monkeypatch.chdir(tmp_path)
    gc.collect()
    gc.disable()
    try:
        before = sockets()
        for _ in range(3):
            async with chat_host(f"sqlite:///{tmp_path / 'f.db'}") as run:
                await run.connect()
                await asyncio.gather(*(run.message() for _ in range(5)))
        await until(lambda: sockets() <= before + 1)
    finally:
        gc.enable()
