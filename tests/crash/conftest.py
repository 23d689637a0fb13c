from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.crash.workers import Field, field_on


@pytest.fixture
async def field(database_url: str, tmp_path: Path) -> AsyncIterator[Field]:
    """A queue, a receiver, and the worker processes between them, on each of the two engines."""
    async with field_on(database_url, tmp_path) as made:
        yield made
