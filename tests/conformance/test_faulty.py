"""The kit finds the sixty faulty hosts by their kinds, and says what is wrong."""

from __future__ import annotations

from typing import Final

import pytest

from flowactions_conformance.kit.hosts import limits
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import run_checks
from tests.conformance.faulty import DRAWN, FAULTS, INVENTED, Fault, factory_of
from tests.conformance.test_mutants import EFFECT_SECONDS, MUTANTS, failed, said

SEED = 20261127
"""Of the values that are drawn, so that all runs are alike."""

FOUND: Final[dict[str, tuple[str, str]]] = {
    "user-number": ("EAGER-3", "a user: digits with leading zeros"),
    "user-lower": ("EAGER-3", "userId of the walk is not the run's"),
    "user-named": ("EAGER-3", "a user: empty"),
    "content-trimmed": ("EAGER-3", "blanks at its begin or end were changed"),
    "content-normal": ("EAGER-3", "it was normalized: Unicode NFC"),
    "content-short": ("EAGER-3", "it was cut after 1000"),
    "content-lines": ("EAGER-3", "its line ends were changed"),
    "content-basic": ("EAGER-3", "a content: beyond the basic plane"),
    "content-json": ("EAGER-3", "a content: JSON"),
    "key-dots": ("EDIT-5", " is missing; it was "),
    "key-lower": ("EDIT-5", " is missing; it was "),
    "time-form": ("EDIT-5", "2030-01-31T09:30:00+00:00', not '2030-01-31T09:30:00Z'"),
    "text-typed": ("EDIT-5", ", not '"),
    "number-float": ("EDIT-5", "the config of a node changed"),
    "empty-dropped": ("EDIT-5", "is missing; it was []"),
    "list-unwrapped": ("EDIT-5", "the config of a node changed"),
    "flow-lower": ("EAGER-3", "flowId of the walk is not the run's"),
    "node-folded": (
        "EAGER-6",
        "of two nodes whose ids differ in upper and lower case only, TWIN is not signed w",
    ),
    "occurred-earlier": ("LOGIC-7", "before it"),
    "firing-again": ("LOGIC-7", "has another occurred_at"),
    "stranger-saves": ("SAVING-6", "a flow was changed by a person of another organization"),
    "reader-saves": ("SAVING-6", "a flow was changed by a person who may only look"),
    "right-kept": ("AUTH-7", "a right that was taken away still works"),
    "agents-kept": ("AUTH-4", "now was answered 404 for the agent"),
    "no-agent-is-all": ("AUTH-4", "a backend that may address no agent now was answered 400"),
    "question-ignored": ("LOGIC-4", "with another question was not refused"),
    "paths-lowered": ("HTTP-4", "a path that ends with 'Ab3/aB3' reached the plugin changed"),
    "cookie-attributes": ("HTTP-8", "the cookies of a plugin's answer lost their attributes httponly"),
    "header-dropped": ("HTTP-5", "the header cache-control of an answer with status 200 was dropped"),
    "status-ok": ("HTTP-5", "an answer with status 201 got another one"),
    "body-cut": ("HTTP-5", "the body of an answer with status 202 was changed"),
    "asked-empty": ("HTTP-3", "the header x-kit-3 reached the plugin changed"),
    "rounds-ten": ("LOOPS-1", "the passages of a run through the node 'before' are not distinguished"),
    "subflow-old": ("LOOPS-4", "a run does not see that a sub-flow was edited before it began"),
    "nodes-on-top": ("EAGER-6", "did not arrive (its node stands in a "),
    "runs-mixed": ("PACING-9", "a user has two runs of a flow, and the next of one went on in the other"),
    "user-shared": (
        "LOAD-3",
        "of two hosts that run in two threads, one gets what belongs to a walk of the oth",
    ),
    "halts-flow": ("HALT-2", "after a run was halted, another run of its flow does not go to its end"),
    "problems-first": ("SAVING-1", "the author is not shown the problem 'missing_url' as the plugin tells it"),
    "drawn-01": ("LOGIC-4", "a call for a survey question's trigger with another question was not refused as "),
    "drawn-02": ("LOAD-1", "401 Unauthorized"),
    "drawn-03": (
        "TENANCY-3",
        "the connection card does not name exactly the organization's agents whose flows ",
    ),
    "drawn-05": ("LOAD-1", "open() of the driver raised HTTPStatusError: Client error '404 Not Found'"),
    "drawn-07": ("LOAD-1", "Unconsumed column names: organization_id"),
    "drawn-08": ("HALT-2", "the run continues after a node that halts"),
    "drawn-09": ("PACING-4", "none of four next at the same time led to the step behind"),
    "drawn-11": ("LOAD-1", "ON CONFLICT clause does not match any PRIMARY KEY"),
    "drawn-14": ("PACING-3", "next did not lead to step 2 of the flow"),
    "drawn-15": (
        "TENANCY-3",
        "the connection card does not name exactly the organization's agents whose flows ",
    ),
    "drawn-18": ("SAVING-1", "400"),
    "drawn-19": ("PACING-3", "next did not lead to step 2 of the flow"),
}
"""Fault → a check that finds it, and a part of what it says."""
UNSEEN: Final[dict[str, str]] = {
    "slashes-merged": "the router of the plugin's own routes merges slashes, too, so no plugin can tell",
    "drawn-04": "it shows only if a request is held between the plugin's answer and the host's own write",
}
"""Fault that breaks a promise → why the kit does not find it."""


def test_there_are_sixty() -> None:
    """Two thirds invented, one third drawn; each breaks a promise, or says why not."""
    assert (len(INVENTED), len(DRAWN)) == (40, 20)
    assert len({fault.name for fault in FAULTS}) == 60
    assert all(bool(fault.breaks) != bool(fault.why) for fault in FAULTS)
    broken = {fault.name for fault in FAULTS if fault.breaks}
    assert FOUND.keys() | UNSEEN.keys() == broken
    assert len(UNSEEN) <= len(broken) / 10


def test_every_check_finds_something() -> None:
    """A check that finds neither a faulty host nor a mutant has not been shown to find anything."""
    found = {check for check, _ in FOUND.values()} | {id_ for broken in MUTANTS for id_ in broken.kills}
    assert found == {check.id for check in all_checks()}


@pytest.mark.ci
@pytest.mark.parametrize("fault", [each for each in FAULTS if each.name in FOUND], ids=lambda each: each.name)
async def test_a_fault_is_found_and_named(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check fails, and its message leads to the fault."""
    check, message = FOUND[fault.name]
    monkeypatch.setitem(limits.SECONDS, "effect", EFFECT_SECONDS)
    report = await run_checks(factory_of(fault), [check], seed=SEED)
    if report.error is None:
        assert failed(report) == {check}
    assert message in (report.error.message if report.error else said(report))
    assert not report.passed
