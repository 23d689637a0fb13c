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

EFFECT_SECONDS = 10.0
"""Long enough for what comes on a busy machine; what never comes is waited for only so long."""
SEED = 20261127
"""Of the values that are drawn, so that all runs are alike."""

FOUND: Final[dict[str, tuple[str, str]]] = {
    "user-number": ("MODEL-1", "a user: digits with leading zeros"),
    "content-normal": ("MODEL-1", "it was normalized: Unicode NFC"),
    "key-dots": ("EDIT-5", " is missing; it was "),
    "flow-lower": ("MODEL-1", "flowId of the walk is not the run's"),
    "node-folded": ("EAGER-6", "of two nodes whose ids differ in upper and lower case only, TWIN is not signed w"),
    "occurred-earlier": ("LOGIC-7", "before it"),
    "firing-again": ("LOGIC-7", "has another occurred_at"),
    "stranger-saves": ("SAVING-6", "a flow was changed by a person of another organization"),
    "reader-saves": ("SAVING-6", "a flow was changed by a person who may only look"),
    "right-kept": ("METHODS-1", "whose right to change things was given a moment ago"),
    "agents-kept": ("METHODS-1", "a backend that may address "),
    "no-agent-is-all": ("METHODS-1", "for a backend that may address no agent now"),
    "question-ignored": ("METHODS-3", "a survey question's group with another question"),
    "paths-lowered": ("HTTP-13", "'Ab3/aB3' reached the plugin changed"),
    "cookie-attributes": ("HTTP-13", "the cookies of a plugin's answer lost their attributes httponly"),
    "header-dropped": ("HTTP-13", "the header cache-control of an answer with status "),
    "status-ok": ("HTTP-13", "got another one"),
    "body-cut": ("HTTP-13", "the body of an answer with status 202 was changed"),
    "asked-empty": ("HTTP-13", "the header x-kit-3 reached the plugin changed"),
    "rounds-ten": ("MODEL-5", "the passages of a run are not distinguished"),
    "subflow-old": ("LOOPS-4", "a run does not see that a sub-flow was edited before it began"),
    "nodes-on-top": ("EAGER-6", "did not arrive (its node stands in a "),
    "runs-mixed": ("MODEL-4", "kept for the flow or the process, and not for the run"),
    "user-shared": ("LOAD-3", "of two hosts that run in two threads, one gets what belongs to a walk of the oth"),
    "halts-flow": ("MODEL-3", "was not reached"),
    "problems-first": ("SAVING-1", "the problem 'probe_warning' of the node warned as the plugin tells it"),
    "runs-nodes-itself": ("PACING-4", "a node did not run once with four next at the same time"),
    "sub-flow-id": ("MODEL-5", "flowId of the walk is not the run's, but the sub-flow's"),
    "node-one-deep": ("METHODS-1 MODEL-5", "Host.node looks only at the flow and the sub-flows directly in it"),
    "halt-ignored-below": ("MODEL-6", "a halt ends the loop or the sub-flow"),
    "steps-of-each-round": ("MODEL-5", "the step's id in the flow is given for each round"),
    "state-of-the-flow": ("MODEL-2 MODEL-4", "userId of the walk is not the run's"),
    "config-by-node-id": ("MODEL-1", "nodes are looked up by their ids alone"),
    "skipped-ends": ("HALT-1 MODEL-3", "does not continue after a node with the status 'skipped'"),
    "end-lost": ("MODEL-2", "with the next from the last step"),
    "one-node-each-step": ("MODEL-2", "of several nodes one after another"),
    "drawn-01": ("METHODS-3", "Host.logic_action answers "),
    "drawn-02": ("LOAD-1", "401 Unauthorized"),
    "drawn-03": ("METHODS-1 METHODS-2", "Host.agents_using answers [] for the type 'webhook'"),
    "drawn-08": ("MODEL-3", "the run continues after a node that halts"),
    "drawn-09": ("MODEL-2", ", but with the next from the last step"),
    "drawn-14": ("MODEL-2", ""),
    "drawn-18": ("SAVING-1", "400"),
    "drawn-19": ("MODEL-2", "the run begins at a later step"),
    "back-door": ("AUTH-1 HTTP-1", "GET /v1/webhooks/outbox without a credential is answered 200"),
    "any-bearer": ("AUTH-1 METHODS-1", "Host.dashboard_principal answers something for a backend's credential"),
    "nobody-may-change": ("METHODS-1", "for a person"),
    "signature-ignored": ("AUTH-6", "is answered when a person's credential comes with its middle character changed, with its last character changed"),
    "first-organization": ("METHODS-2 TENANCY-1", "does not see exactly the deliveries of the organization"),
    "install-of-who-began": ("TENANCY-2", "an install that was begun in another organization was not refused"),
    "organization-of-the-path": ("METHODS-2", "a backend of another organization at the path of an agent of the other one"),
    "secrets-of-all": ("METHODS-2", "for another organization, and a flow and node of the first one"),
    "experiences-by-id": ("METHODS-3", "for an agent that does not exist"),
    "fixed-palette": ("EDIT-1 LOAD-2", "the palette must offer 'probe' once"),
    "own-preview": ("SAVING-3", "the preview shows a secret that the plugin has masked"),
    "slash-in-an-id": ("HTTP-12", "must not hold a slash"),
    "ids-made-anew": ("SAVING-2", "has other node ids than before"),
    "position-is-a-number": ("PACING-11", "after its flow was edited, a run showed a step twice"),
    "answers-early": ("MODEL-1", "open() answers before the host has kept the run"),
    "global-cache": ("LOAD-3", "one walks the other's flow"),
    "unknown-prefix": ("EAGER-9 HTTP-2 TENANCY-2", "where the palette has it"),
    "bodies-again": ("HTTP-13 HTTP-7", " reached the plugin c"),
    "errors-again": ("HTTP-13 HTTP-7", ""),
    "fails-at-unknown-paths": ("HTTP-9", "which nobody has, is a server error"),
    "errors-asked-again": ("HTTP-13", "did not reach the plugin once"),
    "transport-repeats": ("EAGER-10", "one attempt of a delivery, which was answered 500, arrived as several requests"),
    "auth-event-errors-swallowed": ("INBOUND-2", "the provider will not send it again"),
    "auth-events-by-a-route-of-its-own": ("INBOUND-1 INBOUND-2 INBOUND-4", ""),
    "url-of-the-request": ("LOGIC-2", "reads the destination from the request"),
    "first-action-always": ("LOGIC-7 METHODS-3", "for the second action of a row"),
    "action-headers-dropped": ("LOGIC-1 LOGIC-7 METHODS-3", "the action's header is missing"),
    "always-eager": ("MODEL-2", "ran when the client-paced flow was opened"),
    "runs-in-the-background": ("MODEL-1", "the host starts reach() in the background"),
    "user-id-wrong": ("EAGER-2 MODEL-1", "userId of the walk is not the run's"),
    "run-id-is-the-flows": ("MODEL-1", ""),
    "previous-step": ("MODEL-2 PACING-12", "Deferred names another step"),
    "clients-step-trusted": ("PACING-6", "a client at step a that says it is at step c went on from there"),
    "running-is-done": ("PACING-5", "`running` is taken for `done`"),
    "halt-ignored": ("EAGER-9 MODEL-3", "behind one that halts"),
    "items-leaked": ("EAGER-5", "the end user's client got the webhook's signing secret"),
    "secret-cached": ("EAGER-6 METHODS-1 METHODS-3", "a webhook is not signed with the secret that its node has now"),
    "visit-counted-in-memory": ("LOOPS-7", "visit is counted in memory"),
    "innermost-round-only": ("MODEL-5", "visit counts the rounds of the innermost loop only"),
    "runs-counted-in-memory": ("TASK-3", "run ids are counted in memory"),
    "two-sets-of-tasks": ("LOAD-1 TASK-1", "a process of the host runs 2 lifespans of the plugins"),
    "sleeps-in-node": ("TASK-5", "Host.node keeps the event loop for 0.2 s at each call"),
    "lifespan-never-closed": ("TASK-3", "their lifespans were not closed"),
    "gives-up-after-a-crash": ("TASK-2", "after a plugin's task has crashed, requests are not answered any more"),
    "needs-chat": ("TASK-4", "CHAT_CLIENT_ID"),
    "new-encryption-key": ("DURABILITY-1", "each start makes a new encryption key"),
    "sessions-written-at-stop": ("DURABILITY-2", "what the host has written is kept back until it stops"),
    "order-dropped": ("EAGER-11", "to be sent one after another, were not"),
    "sends-before-it-commits": ("DURABILITY-3", "but its webhook was sent"),
    "rolls-back-for-a-plugin": ("HALT-1", "rolls back or answers an error"),
    "unsigned-during-an-outage": ("METHODS-5", "Host.signing_secret answers None for a node while the host's database fails"),
    "tasks-in-the-first-process": ("SCALE-1", "not all of 200 webhooks that were queued in two processes have arrived"),
    "locks-in-memory": ("SCALE-2", "a caller was let past a node that another process still runs"),
    "everybody-operates": ("TENANCY-1", "who is no operator, shows a delivery of "),
    "organization-of-a-header": ("METHODS-2", "names another one by the header x-organization-id"),
    "principal-in-a-global": ("METHODS-2 METHODS-4", "while others are asked at the same moment"),
    "backend-in-a-global": ("METHODS-2 METHODS-4", "while others are asked at the same moment"),
    "nobody-during-an-outage": ("METHODS-5", "Host.dashboard_principal answers None for a person while the host's database fails"),
    "rows-of-any-experience": ("METHODS-3", "for the first action of a row"),
    "secrets-not-saved": ("SAVING-2", "probeSecret is missing"),
    "commit-only-logged": ("DURABILITY-3", "confirmed a run that the host has not kept"),
    "cancelled-is-nothing": ("METHODS-4", "Host.agent answers None for an agent when its call is cancelled"),
    "lock-kept": ("METHODS-4", ""),
    "actions-during-an-outage": ("METHODS-5", "Host.logic_action answers None for an action while"),
    "previews-for-strangers": ("SAVING-6", "a preview for the flow of an organization was made for somebody who has not signed in"),
    "user-id": ("EAGER-9 METHODS-1 METHODS-2 METHODS-4", "for a person"),
    "agent-prefix": ("METHODS-1 METHODS-2 METHODS-4", "for an agent's id in other capitals"),
    "preview-saved": ("SAVING-3", "the preview is not what the plugin gave"),
    "warnings-dropped": ("SAVING-1", "the author is not shown the problem 'probe_warning' of the node warned"),
    "ttl": ("METHODS-1", "for a node, of what was changed a moment ago"),
    "readers-operate": ("METHODS-1 METHODS-2 METHODS-4", "for a person who may only look"),
    "type-by-text": ("METHODS-1 METHODS-2 METHODS-4", "for a type that no flow uses"),
    "header-unpacked": ("METHODS-1", "Host.api_principal raises ValueError for the credential"),
    "secrets-of-nodes-only": ("METHODS-3 LOGIC-1", "Host.signing_secret answers None for the first action of a row"),
    "sub-flow-cached": ("METHODS-1", "deep in the flow"),
    "sub-flow-once": ("MODEL-5", "entered before is not entered again"),
    "reached-again": ("EAGER-5 MODEL-1", "was reached twice when the flow was opened"),
    "defaults-saved": ("SAVING-2", "a save fills in what an author left out"),
    "preview-merged": ("SAVING-3", "the preview is of another config than the author has in the form"),
    "first-agent": ("MODEL-1", "agentId of the walk is not the run's: at"),
    "agents-joined": ("METHODS-1", "once for each of its flows"),
    "agents-cached": ("METHODS-1", "for the type 'webhook', of what was changed a moment ago"),
    "checked-for-another-agent": ("SAVING-1", "checked for another agent"),
    "gives-up": ("HTTP-13", "after 12 seconds, is answered 504"),
    "double-click": ("MODEL-1", "of another run, of the same user and content"),
    "leaves-a-mark": ("SCALE-4", "nobody removes it"),
}  # fmt: skip
"""Fault → the checks that find it, and a part of what they say."""
UNSEEN: Final[dict[str, str]] = {
    "slashes-merged": "the router of the plugin's own routes merges slashes, too, so no plugin can tell",
    "drawn-04": "it shows only if a request is held between the plugin's answer and the host's own write",
}
"""Fault that breaks a promise → why the kit does not find it."""


def test_every_fault_is_found_or_says_why_not() -> None:
    """Nine of ten at least of those that were written down before the checks."""
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert FOUND.keys() | UNSEEN.keys() == {fault.name for fault in FAULTS}
    assert len(UNSEEN) <= len([*INVENTED, *DRAWN]) / 10


def test_every_check_finds_something() -> None:
    """A check that finds no faulty host has not been shown to find anything."""
    found = {id_ for ids, *_ in FOUND.values() for id_ in ids.split()}
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
ALONE: Final = sorted(FOUND.keys() - set(" ".join(TOGETHER).split()))


@pytest.mark.ci
@pytest.mark.parametrize("names", [*TOGETHER, *ALONE], ids=str)
async def test_faults_are_found_and_named(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their checks fail; what they say leads to the fault. The other checks are not tried: on healthy hosts they blame nobody."""
    faults = {name: FOUND[name] for name in names.split()}
    ids = [id_ for checks, _ in faults.values() for id_ in checks.split()]
    # Nobody waits longer for what a faulty host never does, also on a slow machine.
    monkeypatch.setattr(Machine, "slowness", fast)
    monkeypatch.setattr(pacing, "AGAIN_SECONDS", EFFECT_SECONDS)
    monkeypatch.setitem(limits.SECONDS, "effect", EFFECT_SECONDS)
    report = await run_checks(factory_of(together(*faults)), ids, seed=SEED)
    found = [each for each in report.results if each.finding is not None]
    if report.error is None:
        failed = {each.id for each in found if each.status in {Status.FAIL, Status.NOT_TESTABLE}}
        assert failed == set(ids)
        assert not [each for each in found if each.status is Status.ERROR]
    for name, (checks, message) in faults.items():
        findings = [report.error, *(each.finding for each in found if each.id in checks.split())]
        said = [f"{each.message}\n{each.actual}\n{each.causes}" for each in findings if each is not None]
        assert message in "\n".join(said), name
    assert not report.passed
