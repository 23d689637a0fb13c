"""The kit tells right from wrong: each mutant is found by the checks that it declares, and not by one near by."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from flowactions_conformance.kit.checks import pacing
from flowactions_conformance.kit.hosts import limits
from flowactions_conformance.kit.hosts.limits import Machine
from flowactions_conformance.kit.outcomes import Report, Status
from flowactions_conformance.kit.runner import run_checks
from tests.conformance.mutants.mutant import Mutant

pytestmark = pytest.mark.ci

MODULES = sorted(
    path.stem
    for path in (Path(__file__).parent / "mutants").glob("*.py")
    if path.stem not in {"__init__", "mutant", "altered"}
)
MUTANTS: list[Mutant] = [
    each for name in MODULES for each in import_module(f"tests.conformance.mutants.{name}").MUTANTS
]
EFFECT_SECONDS = 10.0
"""Long enough for what comes on a busy machine; what never comes is waited for only so long."""


def failed(report: Report) -> frozenset[str]:
    """Returns the ids of the checks that failed."""
    return frozenset(
        result.id for result in report.results if result.status in {Status.FAIL, Status.NOT_TESTABLE}
    )


def said(report: Report) -> str:
    """Returns everything that the report says of what failed."""
    findings = [result.finding for result in report.results if result.finding is not None]
    return "\n".join(
        f"{each.message}\n{each.expected}\n{each.actual}\n{each.causes}\n{each.logged}" for each in findings
    )


async def fast(_: Machine) -> float:
    return 1.0


@pytest.mark.parametrize("broken", MUTANTS, ids=lambda each: each.name)
async def test_a_mutant_is_found_by_what_it_declares(broken: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks fail that a mutant kills, and not one near by; what they say leads to the fault."""
    # Nobody waits longer for what a mutant never does, also on a slow machine.
    monkeypatch.setattr(Machine, "slowness", fast)
    # A mutant's node may never run again, and the kit would wait a minute for it.
    monkeypatch.setattr(pacing, "AGAIN_SECONDS", EFFECT_SECONDS)
    ids = broken.kills | set(sorted(broken.spares)[:1])
    monkeypatch.setitem(limits.SECONDS, "effect", EFFECT_SECONDS)
    report = await run_checks(broken.factory, ids)
    _check(report, broken)
    assert failed(report) == broken.kills


def _check(report: Report, broken: Mutant) -> None:
    assert report.error is None
    assert broken.message in said(report)
    assert not [result for result in report.results if result.status is Status.ERROR]
