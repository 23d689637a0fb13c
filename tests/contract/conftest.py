from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.outages import patient_databases


@pytest.fixture(scope="session", autouse=True)
def databases_have_time() -> Iterator[None]:
    """A database that answers slowly on a busy machine is not away."""
    with patient_databases():
        yield
