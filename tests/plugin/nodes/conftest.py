from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest import mock

import pytest

from tests.chatting import Adopted, adopted


@pytest.fixture(scope="session", autouse=True)
def nothing_is_repeated() -> Iterator[None]:
    """What the database did not let a process read or run waits for the test's next call, and for no time."""
    with mock.patch("flowactions_plugin.nodes.pacing.REPEAT_SECONDS", 3600.0):
        yield


@pytest.fixture
async def chat(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Adopted]:
    """A host that is connected to a chat workspace, and runs."""
    monkeypatch.chdir(tmp_path)
    async with adopted(database_url) as running:
        yield running
