from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.waiting import SAFETY_SECONDS


@pytest.fixture(scope="package", autouse=True)
def changes_have_time() -> Iterator[None]:
    """What is done at once is done within the call, also where that takes longer: workers do none of it."""
    with mock.patch("flowactions_plugin.operations.port.AT_ONCE_SECONDS", SAFETY_SECONDS):
        yield
