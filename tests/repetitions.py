"""Which tests `.ci/run` leaves to `.ci/full`: those that repeat another one on the other database or in the other mode.

One of them always runs. Where the database is not what a test is about, it is chosen by the test's name: it is the same one
in each process, and half of such tests run on each database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple
from zlib import crc32

ANY_DATABASE: Final = (
    "tests/contract/",
    "tests/crash/test_actions.py",
    "tests/crash/test_enqueue.py",
    "tests/crash/test_enqueue_together.py",
    "tests/crash/test_own_faults.py",
    "tests/crash/test_pacing.py",
    "tests/crash/test_plugin_nodes.py",
    "tests/crash/test_quarantine.py",
    "tests/plugin/chat/",
    "tests/plugin/cli/",
    "tests/plugin/egress/",
    "tests/plugin/inbound/",
    "tests/plugin/logic/",
    "tests/plugin/nodes/",
    "tests/plugin/bulk/",
    "tests/plugin/deliveries/",
    "tests/plugin/health/",
    "tests/plugin/pages/",
    "tests/plugin/queue/test_host_calls.py",
    "tests/plugin/queue/test_own_faults.py",
    "tests/plugin/queue/test_own_webhooks.py",
    "tests/plugin/queue/test_sizes.py",
    "tests/plugin/queue/test_worker.py",
    "tests/plugin/telemetry/",
    "tests/plugin/test_host_answers.py",
    "tests/upgrades/",
)
"""Where tests go through the storage layer, whose own tests run on both databases; and where they take long."""

DATABASES: Final = ("sqlite", "postgresql")
MODES: Final = ("scheduled", "continuous")
DEFAULT_PAIRS: Final = {("sqlite", "scheduled"), ("postgresql", "continuous")}
"""Of tests in both modes on both databases: each database as it is mostly run, so each mode once, too; one of the two where
the database is not what they are about."""


class _Test(NamedTuple):
    """A test's name, the ids of its other parameters, and what it runs on; ``None``: it has no such parameter."""

    name: str
    others: tuple[str, ...]
    database: str | None
    mode: str | None


def repetitions(tests: Iterable[str]) -> frozenset[str]:
    """Returns the tests that repeat another one of them.

    Args:
        tests: node ids, with the ids of their parameters.
    """
    alike: dict[tuple[str, tuple[str, ...]], list[tuple[str, bool]]] = {}
    for node_id in tests:
        test = _read(node_id)
        if test.database is not None and (test.mode is not None or test.name.startswith(ANY_DATABASE)):
            alike.setdefault((test.name, test.others), []).append((node_id, _is_chosen(test)))
    return frozenset(
        node_id
        for group in alike.values()
        if any(chosen for _, chosen in group)
        for node_id, chosen in group
        if not chosen
    )


def _read(node_id: str) -> _Test:
    name, _, parameters = node_id.partition("[")
    words = parameters.rstrip("]").split("-")
    database = next((each for each in DATABASES if each in words), None)
    mode = next((each for each in MODES if each in words), None)
    return _Test(name, tuple(each for each in words if each not in {database, mode}), database, mode)


def _is_chosen(test: _Test) -> bool:
    if test.mode is not None and not test.name.startswith(ANY_DATABASE):
        return (test.database, test.mode) in DEFAULT_PAIRS
    database = DATABASES[crc32("-".join((test.name, *test.others)).encode()) % 2]
    return test.database == database and (test.mode is None or (database, test.mode) in DEFAULT_PAIRS)
