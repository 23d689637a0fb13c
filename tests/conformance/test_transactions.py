"""A host that walks in a transaction of its own is not blamed for it, and rolls back what its nodes have written."""

from __future__ import annotations

import asyncio

import pytest

from flowactions_conformance.kit.outcomes import Status
from flowactions_conformance.kit.runner import run_checks
from tests.conformance.hosts.one_transaction import make_host


@pytest.mark.ci
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_rows_of_nodes_join_the_transaction_of_the_walk(database: str, request: pytest.FixtureRequest) -> None:
    """They are sent when it commits, gone when it rolls back, and a failing write leaves the rest."""
    server = request.getfixturevalue("postgres_server") if database == "postgresql" else None
    names = ("EAGER-1", "EAGER-2", "DURABILITY-3", "HALT-1")
    report = asyncio.run(run_checks(make_host, names, server=server))
    assert report.error is None
    assert [(each.id, each.finding) for each in report.results if each.status is not Status.PASS] == []
    assert len(report.results) == len(names)
