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
from tests.conformance.faulty import DRAWN, FAULTS, INVENTED, Fault, factory_of

EFFECT_SECONDS = 10.0
"""Long enough for what comes on a busy machine; what never comes is waited for only so long."""
SEED = 20261127
"""Of the values that are drawn, so that all runs are alike."""

FOUND: Final[dict[str, tuple[str, ...]]] = {
    "user-number": ("MODEL-1", "a user: digits with leading zeros"),
    "user-lower": ("MODEL-1", "userId of the walk is not the run's"),
    "user-named": ("MODEL-1", "a user: empty"),
    "content-trimmed": ("MODEL-1", "blanks at its begin or end were changed"),
    "content-normal": ("MODEL-1", "it was normalized: Unicode NFC"),
    "content-short": ("MODEL-1", "it was cut after 1000"),
    "content-lines": ("MODEL-1", "its line ends were changed"),
    "content-basic": ("MODEL-1", "a content: beyond the basic plane"),
    "content-json": ("MODEL-1", "a content: JSON"),
    "key-dots": ("EDIT-5", " is missing; it was "),
    "key-lower": ("EDIT-5", " is missing; it was "),
    "time-form": ("EDIT-5", "2030-01-31T09:30:00+00:00', not '2030-01-31T09:30:00Z'"),
    "text-typed": ("EDIT-5", ", not '"),
    "number-float": ("EDIT-5", "the config of a node changed"),
    "empty-dropped": ("EDIT-5", "is missing; it was []"),
    "list-unwrapped": ("EDIT-5", "the config of a node changed"),
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
    "runs-nodes-itself": ("PACING-4", "a node did not run once with four next at the same time", "EAGER-2"),
    "sub-flow-id": ("MODEL-5", "flowId of the walk is not the run's, but the sub-flow's"),
    "sub-flow-agent": ("MODEL-5", "agentId of the walk is not the run's, but the sub-flow's"),
    "node-one-deep": ("MODEL-5", "Host.node looks only at the flow and the sub-flows directly in it"),
    "rounds-reversed": ("MODEL-5", "nodes ran in another order"),
    "rounds-at-most-ten": ("MODEL-5", "in round 11 of loop"),
    "lost-behind-an-empty-arm": ("MODEL-5", "what stands behind the empty arm of branch"),
    "halt-ignored-below": ("MODEL-6", "a halt ends the loop or the sub-flow"),
    "visit-of-the-sub-flow": ("MODEL-5", "the place from which the sub-flow was entered"),
    "steps-of-each-round": ("MODEL-5", "the step's id in the flow is given for each round"),
    "state-of-the-flow": ("MODEL-2 MODEL-4", "userId of the walk is not the run's"),
    "config-by-node-id": ("MODEL-1", "nodes are looked up by their ids alone"),
    "content-cut-late": ("MODEL-1", "it was cut after 16000 of 20000 characters"),
    "skipped-ends": ("HALT-1 MODEL-3", "does not continue after a node with the status 'skipped'"),
    "end-lost": ("MODEL-2", "with the next from the last step"),
    "one-node-each-step": ("MODEL-2", "of several nodes one after another"),
    "drawn-01": ("METHODS-3", "Host.logic_action answers "),
    "drawn-02": ("LOAD-1", "401 Unauthorized"),
    "drawn-03": ("METHODS-1 METHODS-2", "Host.agents_using answers [] for the type 'webhook'"),
    "drawn-05": ("LOAD-1", "open() of the driver raised HTTPStatusError: Client error '404 Not Found'"),
    "drawn-07": ("LOAD-1", "Unconsumed column names: organization_id"),
    "drawn-08": ("MODEL-3", "the run continues after a node that halts"),
    "drawn-09": ("MODEL-2", ", but with the next from the last step"),
    "drawn-11": ("LOAD-1", "ON CONFLICT clause does not match any PRIMARY KEY"),
    "drawn-14": ("MODEL-2", ""),
    "drawn-15": ("METHODS-1 METHODS-2", "Host.agents_using answers [] for the type 'webhook'"),
    "drawn-18": ("SAVING-1", "400"),
    "drawn-19": ("MODEL-2", "the run begins at a later step"),
    "back-door": ("AUTH-1 HTTP-1", "GET /v1/webhooks/outbox without a credential is answered 200", "LOGIC-1"),
    "any-bearer": ("AUTH-1 METHODS-1", "Host.dashboard_principal answers something for a backend's credential", "LOGIC-1"),
    "nobody-may-change": ("METHODS-1", "for a person", "AUTH-1"),
    "signature-ignored": ("AUTH-6", "is answered when a person's credential comes with its middle character changed, with its last character changed", "AUTH-1"),
    "first-organization": ("METHODS-2 TENANCY-1", "does not see exactly the deliveries of the organization", "METHODS-1"),
    "install-of-who-began": ("TENANCY-2", "an install that was begun in another organization was not refused", "TENANCY-1"),
    "organization-of-the-path": ("METHODS-2", "a backend of another organization at the path of an agent of the other one", "AUTH-6"),
    "secrets-of-all": ("METHODS-2", "for another organization, and a flow and node of the first one", "EAGER-2"),
    "experiences-by-id": ("METHODS-3", "for an agent that does not exist", "METHODS-1"),
    "fixed-palette": ("EDIT-1 LOAD-2", "the palette must offer 'probe' once", "HALT-1"),
    "own-preview": ("SAVING-3", "the preview shows a secret that the plugin has masked", "SAVING-1"),
    "slash-in-an-id": ("HTTP-12", "must not hold a slash", "LOGIC-1"),
    "ids-made-anew": ("SAVING-2", "has other node ids than before", "SAVING-1"),
    "position-is-a-number": ("PACING-11", "after its flow was edited, a run showed a step twice", "PACING-4"),
    "global-cache": ("LOAD-3", "one walks the other's flow", "HALT-1"),
    "unknown-prefix": ("EAGER-9 HTTP-2 TENANCY-2", "where the palette has it", "AUTH-1"),
    "bodies-again": ("HTTP-13 HTTP-7", " reached the plugin c", "HTTP-1"),
    "errors-again": ("HTTP-13 HTTP-7", "", "AUTH-1"),
    "fails-at-unknown-paths": ("HTTP-9", "which nobody has, is a server error", "HTTP-1"),
    "errors-asked-again": ("HTTP-13", "did not reach the plugin once", "HTTP-1"),
    "transport-repeats": ("EAGER-10", "one attempt of a delivery, which was answered 500, arrived as several requests", "EAGER-2"),
    "auth-event-errors-swallowed": ("INBOUND-2", "the provider will not send it again", "INBOUND-1"),
    "auth-events-by-a-route-of-its-own": ("INBOUND-1 INBOUND-2 INBOUND-4", "", "LOAD-1"),
    "url-of-the-request": ("LOGIC-2", "reads the destination from the request", "LOGIC-1"),
    "first-action-always": ("LOGIC-7 METHODS-3", "for the second action of a row", "LOGIC-1"),
    "action-headers-dropped": ("LOGIC-1 LOGIC-7 METHODS-3", "the action's header is missing", "LOGIC-2"),
    "always-eager": ("MODEL-2", "ran when the client-paced flow was opened", "HALT-1"),
    "runs-in-the-background": ("MODEL-1", "the host starts reach() in the background", "EAGER-2"),
    "user-id-wrong": ("EAGER-2 MODEL-1", "userId of the walk is not the run's", "HALT-1"),
    "run-id-is-the-flows": ("MODEL-1", "", "HALT-1"),
    "previous-step": ("MODEL-2 PACING-12", "Deferred names another step", "EAGER-2"),
    "clients-step-trusted": ("PACING-6", "a client at step a that says it is at step c went on from there", "PACING-4"),
    "running-is-done": ("PACING-5", "`running` is taken for `done`", "PACING-4"),
    "halt-ignored": ("EAGER-9 MODEL-3", "behind one that halts", "HALT-1"),
    "items-leaked": ("EAGER-5", "the end user's client got the webhook's signing secret", "HALT-1"),
    "secret-cached": ("EAGER-6 METHODS-1 METHODS-3", "a webhook is not signed with the secret that its node has now", "EAGER-2"),
    "visit-counted-in-memory": ("LOOPS-7", "visit is counted in memory", "LOOPS-4"),
    "innermost-round-only": ("MODEL-5", "visit counts the rounds of the innermost loop only"),
    "all-arms": ("MODEL-5", "the nodes of all arms", "LOOPS-4"),
    "halt-ends-the-sub-flow": ("MODEL-6", "a halt ends the loop or the sub-flow", "HALT-1"),
    "runs-counted-in-memory": ("TASK-3", "run ids are counted in memory", "MODEL-1"),
    "two-sets-of-tasks": ("LOAD-1 TASK-1", "a process of the host runs 2 lifespans of the plugins", "HALT-1"),
    "sleeps-in-node": ("TASK-5", "Host.node keeps the event loop for 0.2 s at each call", "EAGER-6"),
    "lifespan-never-closed": ("TASK-3", "their lifespans were not closed", "TASK-1"),
    "gives-up-after-a-crash": ("TASK-2", "after a plugin's task has crashed, requests are not answered any more", "TASK-1"),
    "needs-chat": ("TASK-4", "CHAT_CLIENT_ID", "TASK-1"),
    "new-encryption-key": ("DURABILITY-1", "each start makes a new encryption key", "TASK-3"),
    "sessions-written-at-stop": ("DURABILITY-2", "what the host has written is kept back until it stops", "DURABILITY-1"),
    "order-dropped": ("EAGER-11", "to be sent one after another, were not", "EAGER-10"),
    "sends-before-it-commits": ("DURABILITY-3", "but its webhook was sent", "EAGER-2"),
    "rolls-back-for-a-plugin": ("HALT-1", "rolls back or answers an error", "DURABILITY-3"),
    "unsigned-during-an-outage": ("METHODS-5", "Host.signing_secret answers None for a node while the host's database fails", "DURABILITY-3"),
    "tasks-in-the-first-process": ("SCALE-1", "not all of 200 webhooks that were queued in two processes have arrived", "LOAD-1"),
    "locks-in-memory": ("SCALE-2", "a caller was let past a node that another process still runs", "PACING-4"),
    "everybody-operates": ("TENANCY-1", "who is no operator, shows a delivery of ", "AUTH-1"),
    "organization-of-a-header": ("METHODS-2", "names another one by the header x-organization-id", "AUTH-1"),
    "principal-in-a-global": ("METHODS-2 METHODS-4", "while others are asked at the same moment"),
    "backend-in-a-global": ("METHODS-2 METHODS-4", "while others are asked at the same moment", "TENANCY-1"),
    "nobody-during-an-outage": ("METHODS-5", "Host.dashboard_principal answers None for a person while the host's database fails", "DURABILITY-3"),
    "rows-of-any-experience": ("METHODS-3", "for the first action of a row", "LOGIC-1"),
    "secrets-not-saved": ("SAVING-2", "probeSecret is missing", "SAVING-1"),
    "commit-only-logged": ("DURABILITY-3", "confirmed a run that the host has not kept", "DURABILITY-1"),
    "cancelled-is-nothing": ("METHODS-4", "Host.agent answers None for an agent when its call is cancelled", "METHODS-1"),
    "lock-kept": ("METHODS-4", ""),
    "actions-during-an-outage": ("METHODS-5", "Host.logic_action answers None for an action while", "METHODS-3"),
    "previews-for-strangers": ("SAVING-6", "a preview for the flow of an organization was made for somebody who has not signed in", "SAVING-3"),
    "user-id": ("EAGER-9 METHODS-1 METHODS-2 METHODS-4", "for a person", "AUTH-1"),
    "agent-prefix": ("METHODS-1 METHODS-2 METHODS-4", "for an agent's id in other capitals", "LOGIC-1"),
    "preview-saved": ("SAVING-3", "the preview is not what the plugin gave", "SAVING-6"),
    "warnings-dropped": ("SAVING-1", "the author is not shown the problem 'probe_warning' of the node warned", "SAVING-2"),
    "ttl": ("METHODS-1", "for a node, of what was changed a moment ago", "MODEL-1"),
    "readers-operate": ("METHODS-1 METHODS-2 METHODS-4", "for a person who may only look", "TENANCY-1"),
    "type-by-text": ("METHODS-1 METHODS-2 METHODS-4", "for a type that no flow uses", "EAGER-9"),
    "header-unpacked": ("METHODS-1", "Host.api_principal raises ValueError for the credential"),
    "secrets-of-nodes-only": ("METHODS-3 LOGIC-1", "Host.signing_secret answers None for the first action of a row", "METHODS-1"),
    "sub-flow-cached": ("METHODS-1", "deep in the flow", "LOGIC-1"),
    "sub-flow-once": ("MODEL-5", "entered before is not entered again", "METHODS-1"),
    "reached-again": ("EAGER-5 MODEL-1", "was reached twice when the flow was opened", "METHODS-1"),
    "defaults-saved": ("SAVING-2", "a save fills in what an author left out", "SAVING-1"),
    "preview-merged": ("SAVING-3", "the preview is of another config than the author has in the form", "SAVING-2"),
    "first-agent": ("MODEL-1", "agentId of the walk is not the run's: at", "METHODS-1"),
    "agents-joined": ("METHODS-1", "once for each of its flows", "LOGIC-1"),
    "agents-cached": ("METHODS-1", "for the type 'webhook', of what was changed a moment ago", "LOGIC-1"),
    "checked-for-another-agent": ("SAVING-1", "checked for another agent", "SAVING-3"),
    "gives-up": ("HTTP-13", "after 12 seconds, is answered 504", "HTTP-7"),
    "double-click": ("MODEL-1", "of another run, of the same user and content", "METHODS-1"),
    "leaves-a-mark": ("SCALE-4", "nobody removes it", "PACING-4"),
}  # fmt: skip
"""Fault → the checks that find it, a part of what they say, and perhaps one near by that does not blame the host."""
UNSEEN: Final[dict[str, str]] = {
    "slashes-merged": "the router of the plugin's own routes merges slashes, too, so no plugin can tell",
    "drawn-04": "it shows only if a request is held between the plugin's answer and the host's own write",
}
"""Fault that breaks a promise → why the kit does not find it."""


def test_there_are_sixty() -> None:
    """Two thirds invented, one third drawn, beside further ones; each breaks a promise, or says why not."""
    assert (len(INVENTED), len(DRAWN)) == (40, 20)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(bool(fault.breaks) != bool(fault.why) for fault in FAULTS)
    broken = {fault.name for fault in FAULTS if fault.breaks}
    assert FOUND.keys() | UNSEEN.keys() == broken
    assert len(UNSEEN) <= len({fault.name for fault in (*INVENTED, *DRAWN)} & broken) / 10


def test_every_check_finds_something() -> None:
    """A check that finds no faulty host has not been shown to find anything."""
    found = {id_ for ids, *_ in FOUND.values() for id_ in ids.split()}
    assert found == {check.id for check in all_checks()}


def fast(_: Machine) -> float:
    return 1.0


@pytest.mark.ci
@pytest.mark.parametrize("fault", [each for each in FAULTS if each.name in FOUND], ids=lambda each: each.name)
async def test_a_fault_is_found_and_named(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checks fail, and not one near by; what they say leads to the fault."""
    checks, message, *spared = FOUND[fault.name]
    # Nobody waits longer for what a faulty host never does, also on a slow machine.
    monkeypatch.setattr(Machine, "slowness", fast)
    monkeypatch.setattr(pacing, "AGAIN_SECONDS", EFFECT_SECONDS)
    monkeypatch.setitem(limits.SECONDS, "effect", EFFECT_SECONDS)
    report = await run_checks(factory_of(fault), [*checks.split(), *spared], seed=SEED)
    found = [each for each in report.results if each.finding is not None]
    if report.error is None:
        failed = {each.id for each in found if each.status in {Status.FAIL, Status.NOT_TESTABLE}}
        assert failed == set(checks.split())
        assert not [each for each in found if each.status is Status.ERROR]
    findings = [report.error, *(each.finding for each in found)]
    said = [f"{each.message}\n{each.actual}\n{each.causes}" for each in findings if each is not None]
    assert message in "\n".join(said)
    assert not report.passed
