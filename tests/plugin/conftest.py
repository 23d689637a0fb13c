from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from flowactions_plugin.operations import changes, engine
from tests.outages import patient_databases
from tests.waiting import SAFETY_SECONDS


@pytest.fixture(scope="session", autouse=True)
def databases_have_time() -> Iterator[None]:
    """A database that answers slowly on a busy machine is not away: tests about these limits set their own."""
    with patient_databases():
        yield


@pytest.fixture(scope="session", autouse=True)
def lookups_have_time() -> Iterator[None]:
    """Enqueue waits for the addresses of a name: after a second it would let through what a test expects to be refused."""
    with mock.patch("flowactions_plugin.egress.guard.RESOLVE_SECONDS", SAFETY_SECONDS):
        yield


@pytest.fixture
def nobody_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker runs that would give a row back: a cancellation need not wait until it has."""
    for module in (changes, engine):
        monkeypatch.setattr(module, "WITHDRAWN_SECONDS", 0.01)
