from __future__ import annotations

from collections.abc import Iterator

import pytest

from flowactions_plugin.operations import changes, engine
from tests.outages import patient_databases


@pytest.fixture(scope="session", autouse=True)
def databases_have_time() -> Iterator[None]:
    """A database that answers slowly on a busy machine is not away: tests about these limits set their own."""
    with patient_databases():
        yield


@pytest.fixture
def nobody_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs that would give a row back: a cancellation need not wait until it has."""
    for module in (changes, engine):
        monkeypatch.setattr(module, "WITHDRAWN_SECONDS", 0.01)
