"""The kit finds the faulty hosts by their kinds, and says what is wrong."""

from __future__ import annotations

from typing import Final

import pytest

from flowactions_conformance.kit.checks import pacing
from flowactions_conformance.kit.hosts import limits
from flowactions_conformance.kit.hosts.limits import Machine
from flowactions_conformance.kit.outcomes import Status
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import run_checks
from tests.conformance.faulty import DRAWN, FAULTS, INVENTED, factory_of, together
from tests.waiting import SAFETY_SECONDS

EFFECT_SECONDS = 10.0
"""Long enough for what comes on a busy machine; what never comes is waited for only so long."""
SEED = 20261127
"""Of the values that are drawn, so that all runs are alike."""


def test_every_fault_is_found_or_says_why_not() -> None:
    """Nine of ten at least of those that were written down before the checks."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.says for fault in FAULTS if not fault.found)
    assert len([fault for fault in FAULTS if not fault.found]) <= len([*INVENTED, *DRAWN]) / 10


def test_every_check_finds_something() -> None:
    """A check that finds no faulty host has not been shown to find anything."""
    found = {id_ for fault in FAULTS for id_ in fault.found.split()}
    assert found == {check.id for check in all_checks()}


def fast(_: Machine) -> float:
    return 1.0


TOGETHER: Final = (
    "unknown-prefix action-headers-dropped agent-prefix any-bearer previous-step skipped-ends",
    "readers-operate bodies-again halt-ignored user-number key-dots node-folded",
    "type-by-text errors-again content-normal occurred-earlier stranger-saves question-ignored",
    "drawn-03 flow-lower firing-again reader-saves paths-lowered runs-mixed",
    "cookie-attributes halts-flow problems-first drawn-01 drawn-09",
    "first-organization right-kept header-dropped drawn-08 drawn-14 drawn-18",
    "status-ok drawn-19 signature-ignored experiences-by-id",
    "body-cut install-of-who-began own-preview slash-in-an-id",
    "errors-asked-again run-id-is-the-flows running-is-done items-leaked order-dropped rolls-back-for-a-plugin",
    "user-id auth-events-by-a-route-of-its-own first-action-always back-door user-id-wrong",
    "url-of-the-request unsigned-during-an-outage everybody-operates rows-of-any-experience",
    "nobody-during-an-outage no-agent-is-all cancelled-is-nothing previews-for-strangers preview-saved warnings-dropped",
    "actions-during-an-outage runs-nodes-itself config-by-node-id",
    "secrets-of-all agents-kept fails-at-unknown-paths auth-event-errors-swallowed always-eager",
    "organization-of-the-path asked-empty ids-made-anew position-is-a-number transport-repeats",
    "secret-cached organization-of-a-header clients-step-trusted end-lost",
    "two-sets-of-tasks sends-before-it-commits one-node-each-step",
    "innermost-round-only state-of-the-flow secrets-not-saved",
)
"""Faults that one host has at once, each found by checks of its own: to start a host takes longer than most checks. Faults that change what other checks see, or when, are alone."""
FOUND: Final = {fault.name: fault for fault in FAULTS if fault.found}
ALONE: Final = sorted(FOUND.keys() - set(" ".join(TOGETHER).split()))


@pytest.mark.ci
@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids=str)
async def test_faults_are_found_and_named(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checks fail; what they say leads to the fault. The other checks are not tried: on healthy hosts they blame nobody."""
    faults = [FOUND[name] for name in names.split()]
    ids = [id_ for fault in faults for id_ in fault.found.split()]
    # Nobody waits longer for what a faulty host never does, also on a slow machine. All else comes, however slow it is.
    monkeypatch.setattr(Machine, "slowness", fast)
    for what in limits.SECONDS:
        monkeypatch.setitem(limits.SECONDS, what, SAFETY_SECONDS)
    monkeypatch.setattr(pacing, "AGAIN_SECONDS", EFFECT_SECONDS)
    monkeypatch.setitem(limits.SECONDS, "effect", EFFECT_SECONDS)
    report = await run_checks(factory_of(together(*faults)), ids, seed=SEED)
    found = [each for each in report.results if each.finding is not None]
    if report.error is None:
        failed = {each.id for each in found if each.status in {Status.FAIL, Status.NOT_TESTABLE}}
        assert failed == set(ids)
        assert not [each for each in found if each.status is Status.ERROR]
    for fault in faults:
        findings = [report.error, *(each.finding for each in found if each.id in fault.found.split())]
        said = [f"{each.message}\n{each.actual}\n{each.causes}" for each in findings if each is not None]
        assert fault.says in "\n".join(said), fault.name
    assert not report.passed
