"""SAVING: authors learn what is wrong with a config, see what would leave, and what is saved is what runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from flowactions_conformance.kit.checks.edit import KEPT
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.plugin import PROBLEM
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.compare import difference
from flowactions_conformance.kit.support.pair import Pair
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action, Item, Login

MASK: Final = "••••••••"
TOLD: Final = (
    "the host saves without asking actions.check, or POST /integrations/nodes/check",
    "it shows only some of the problems, or only their messages: hand them on as they are",
)
PREVIEWED: Final = (
    "the preview is made by the host from the config: it is actions.preview, or POST /integrations/nodes/preview",
    "the host adds the config, or the secret, to what the plugin answers",
)


@check("SAVING-1", profile="editing", clause="contract: What a host does (Configs), Problems", causes=TOLD)
async def tells_problems(trial: Trial) -> None:
    """The problems of a config reach its author when it is saved, each with all that the plugin says of it."""
    bad = (
        trial.probe("probe", problem="error"),
        trial.probe("warned", problem="warning"),
        Action(id=trial.id("no-url"), type="webhook", config={}),
        trial.webhook("bad-json", webhookBody='{"a": 1,\n "b": }'),
    )
    flow = trial.flow(*bad)
    await trial.seed(trial.flow())
    shown: Sequence[Mapping[str, Any]] = await trial.call("save", trial.author, flow)
    expected = [
        *(
            {"path": ["text"], "code": f"probe_{severity}", "message": PROBLEM, "severity": severity}
            for severity in ("error", "warning")
        ),
        *[problem for node in bad[2:] for problem in await _checked(trial, node)],
    ]
    for problem in expected:
        known = {name: value for name, value in problem.items() if value is not None}
        trial.expect(
            any(
                all(name in one and difference(known[name], one[name]) is None for name in known)
                for one in shown
            ),
            f"the author is not shown the problem {problem['code']!r} as the plugin tells it",
            expected=known,
            actual=[problem_ for problem_ in shown if problem_.get("code") == problem["code"]] or list(shown),
        )
    codes = {problem["code"] for problem in expected}
    shown = await trial.call("save", trial.author, trial.flow(trial.probe("probe"), trial.webhook("good")))
    left = [problem for problem in shown if problem.get("code") in codes]
    trial.equal(left, [], "the author is shown problems that were corrected")


@check(
    "SAVING-2",
    profile="editing",
    clause="contract: What a host does (Configs), What a host provides (signing_secret, node)",
    causes=(
        *KEPT,
        "a save drops fields by their names, for example those that end with Secret: keep what an author has written",
        "saving a flow gives its nodes new ids: deliveries that wait for their secret find no node any more",
    ),
    covers=("configs",),
)
async def runs_what_was_saved(trial: Trial) -> None:
    """What an author saves is what runs: the newest config, as it was written, in a node that keeps its id."""
    await trial.seed(trial.flow())
    old = trial.flow(trial.step("a"), trial.probe("first"), trial.probe("second", text="old", removed=1))
    await trial.call("save", trial.author, old)
    secrets = {name: trial.id(name) for name in ("probeSecret", "unknownSecret")}
    config = trial.values.config()
    # Three of them: where a host has loops and branches, one stands at the top of the flow, one in a loop, and one in a branch.
    new = [trial.probe(name, **config, **secrets) for name in ("second", "third", "fourth")]
    kept: list[Item] = [trial.step("a"), trial.probe("first"), trial.step("b"), *new]
    ids: list[str] = []
    for items, how in (
        (kept, ""),
        (kept, "a flow that was saved again without a change"),
        ([trial.probe("before"), *kept, trial.probe("behind")], "a flow that was saved with two more nodes"),
    ):
        flow = trial.flow(*items)
        await trial.call("save", trial.author, flow)
        before = len(trial.reached())
        await trial.open(flow)
        reached = {
            event.data["node"]["config"].get("name"): event.data["node"] for event in trial.reached()[before:]
        }
        names = [item.config["name"] for item in items if isinstance(item, Action)]
        trial.equal(list(reached), names, "the saved flow did not run its nodes")
        for node in new:
            name = node.config["name"]
            message = f"what was saved{trial.stands(name)} does not run as it was saved"
            trial.same(reached[name]["config"], node.config, message)
        found = [reached[name]["id"] for name in ("first", "second")]
        ids = ids or found
        trial.equal(found, ids, f"{how} has other node ids than before, of nodes that were not changed")


@check("SAVING-3", profile="editing", clause="contract: What a host does (Configs), Drafts", causes=PREVIEWED)
async def previews_as_the_plugin_gives_it(trial: Trial) -> None:
    """The preview is what the plugin gave: nothing is missing, secrets are masked, and nothing is sent."""
    secret = f"s3cret-{trial.token}"
    text = f"Tëxt “{trial.token}” <b>&"
    probe = trial.probe("probe", text=text, probeSecret=secret)
    webhook = trial.webhook(
        "webhook",
        webhookSecret=secret,
        webhookBody='{"n": 1.10}',
        webhookHeaders=[
            {"key": "x-kit", "value": "a  b"},
            {"key": "authorization", "value": f"Bearer {secret}"},
        ],
    )
    flow = trial.flow(probe, webhook)
    # What is saved is another config than the one that its author sees now.
    await trial.seed(
        trial.flow(trial.probe("probe", text="saved"), trial.webhook("webhook", webhookBody='"saved"'))
    )
    shown: Mapping[str, Any] = await trial.call("preview", trial.author, flow.id, probe)
    told = str(shown.get("text"))
    trial.expect(
        shown.get("target") == "probe"
        and told.startswith(f"{text} for ")
        and told.endswith(f", secret {MASK}"),
        "the preview is not what the plugin gave",
        expected={"target": "probe", "text": f"{text} for (a user), secret {MASK}"},
        actual=shown,
    )
    sent: Mapping[str, Any] = await trial.call("preview", trial.author, flow.id, webhook)
    expected = {"method": "POST", "url": trial.hook("webhook"), "body": '{"n": 1.10}'}
    trial.equal(
        {name: sent.get(name) for name in expected}, expected, "the preview is not what the plugin gave"
    )
    headers = {each["key"]: each["value"] for each in sent.get("headers") or ()}
    trial.equal(headers.get("x-kit"), "a  b", "the preview lacks a header that the plugin gave")
    for preview in (shown, sent):
        trial.expect(
            secret not in msgspec.json.encode(preview).decode(),
            "the preview shows a secret that the plugin has masked",
            expected=f"{MASK} or … in its place",
            actual=preview,
        )
    trial.equal(len(trial.reached()), 0, "a preview has run the node")
    (made,) = trial.reached(kind="previewed")
    trial.equal(
        (made.data["walk"]["organizationId"], made.data["agent"]),
        (trial.of_host(trial.organization), trial.of_host(trial.agent)),
        "the preview was made for another organization or agent",
    )


@check(
    "SAVING-6",
    profile="editing",
    clause="contract: What a host does (Tenants), What a host provides (may_change)",
    causes=(
        "the flow is looked up by its id alone: look it up by the organization of who saves it, too",
        "the host's own route does not look at what the person may do, or looks at what they might do when they signed in",
    ),
)
async def only_authors_save(trial: Trial) -> None:
    """Only an author of its organization changes a flow, by a right of now, and only its people are shown a preview for it."""
    pair = Pair(trial)
    former = Login(kind="dashboard", organization=trial.organization, id=trial.id("former"))
    reader = replace(former, id=trial.id("reader"), may_change=False)
    kept, changed = trial.flow(trial.probe("kept")), trial.flow(trial.probe("changed"))
    await trial.seed(world=pair.world(kept, logins=(reader, former)))
    await trial.call("save", former, kept)
    former = replace(former, may_change=False)
    await trial.seed(world=trial.world(logins=(former,)))
    tried = [
        ("a person who may only look", reader, changed),
        ("a person whose right was taken away", former, changed),
        ("somebody who has not signed in", replace(former, id=trial.id("nobody")), changed),
    ]
    if "tenancy" in trial.session.claims:
        theirs = replace(changed, organization=pair.other, agent=pair.other_agent)
        tried += [("a person of another organization", pair.stranger, each) for each in (changed, theirs)]
    for how, who, flow in tried:
        try:
            await trial.call("save", who, flow)
        except DriverFault as exc:
            trial.note("host", f"refuses: {exc}")
        before = len(trial.ran())
        await trial.open(kept)
        trial.equal(trial.ran(before), ["kept"], f"a flow was changed by {how}")
    own = {trial.of_host(trial.organization), trial.of_host(trial.agent)}
    for how, who, _ in tried[2:]:
        before = len(trial.reached(kind="previewed"))
        try:
            await trial.call("preview", who, kept.id, trial.probe("draft"))
        except DriverFault as exc:
            trial.note("host", f"refuses: {exc}")
        made = [each.data for each in trial.reached(kind="previewed")[before:]]
        trial.expect(
            not any(own & {each["agent"], each["walk"]["organizationId"]} for each in made),
            f"a preview for the flow of an organization was made for {how}",
            expected="preview() of the driver raises what the host answers, or the preview is of their own organization",
            actual=made,
            causes=(
                "the flow's organization is taken for that of the person: compare it with the person's",
                *trial.check.causes,
            ),
        )


async def _checked(trial: Trial, node: Action) -> list[dict[str, Any]]:
    """Asks the plugin's route what is wrong with a node."""
    body = {
        "agentId": trial.of_host(trial.agent),
        "node": {"type": node.type, "id": node.id, "config": node.config},
    }
    answer = await trial.request("POST", "/integrations/nodes/check", who=trial.author, json=body)
    trial.answers(answer, 200, "the plugin does not check a node")
    found: list[dict[str, Any]] = answer.json()["data"]
    trial.expect(found, "the plugin finds nothing wrong with a node that has no URL, or a body that is no JSON")
    return found
