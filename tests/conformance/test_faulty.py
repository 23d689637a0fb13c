"""The kit finds the sixty faulty hosts by their kinds, and says what is wrong."""

from __future__ import annotations

from typing import Final

import pytest

from flowactions_conformance.kit.hosts.limits import EffectTimeout
from flowactions_conformance.kit.runner import run_checks
from tests.conformance.faulty import DRAWN, FAULTS, INVENTED, Fault, factory_of
from tests.conformance.test_mutants import failed, said

FOUND: Final[dict[str, tuple[str, str]]] = {}
"""Fault → a check that finds it, and a part of what it says."""
UNSEEN: Final[dict[str, str]] = {}
"""Fault that breaks a promise → why the kit does not find it."""


def test_there_are_sixty() -> None:
    """Two thirds invented, one third drawn; each breaks a promise, or says why not."""
    assert (len(INVENTED), len(DRAWN)) == (40, 20)
    assert len({fault.name for fault in FAULTS}) == 60
    assert all(bool(fault.breaks) != bool(fault.why) for fault in FAULTS)
    broken = {fault.name for fault in FAULTS if fault.breaks}
    assert FOUND.keys() | UNSEEN.keys() == broken
    assert len(UNSEEN) <= len(broken) / 10


@pytest.mark.ci
@pytest.mark.parametrize("fault", [each for each in FAULTS if each.name in FOUND], ids=lambda each: each.name)
async def test_a_fault_is_found_and_named(fault: Fault) -> None:
    """The check fails, and its message leads to the fault."""
    check, message = FOUND[fault.name]
    report = await run_checks(factory_of(fault), [check], effect_timeout=EffectTimeout(10.0))
    if report.error is None:
        assert failed(report) == {check}
    assert message in (report.error.message if report.error else said(report))
    assert not report.passed
