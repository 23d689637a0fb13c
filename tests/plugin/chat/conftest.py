from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chatting import ChatHost, chat_host


@pytest.fixture
async def run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    """A host whose chat workspace is not connected yet."""
    monkeypatch.chdir(tmp_path)  # the development key file
    async with chat_host(database_url) as running:
        yield running
