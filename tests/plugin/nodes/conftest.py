from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.chatting import Adopted, adopted


@pytest.fixture
async def chat(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Adopted]:
    """A host that is connected to a chat workspace, and runs."""
    monkeypatch.chdir(tmp_path)
    async with adopted(database_url) as running:
        yield running
