from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chatting import ChatHost, chat_host


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The development key file is in the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[ChatHost]:
    """A host whose chat workspace is not connected yet."""
    async with chat_host(database_url) as running:
        yield running
