from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.loopback import held_port


@pytest.fixture
def port() -> Iterator[int]:
    """A port for a program that gets its number."""
    with held_port() as port:
        yield port
