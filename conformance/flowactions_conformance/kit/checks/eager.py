"""EAGER: in a flow that is walked to its end at once, each node runs when the walk reaches it."""

from __future__ import annotations

from typing import Final

from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.chat import connect
from flowactions_conformance.kit.support.client import hides, pacings, walked
from flowactions_conformance.kit.support.deliveries import until_dead
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action


@check(
    "EAGER-2",
    profile="core",
    clause="contract: enqueue; spec 5.3",
    causes=(
        "the lifespan of FlowActions is not entered in the process that serves",
        "FLOWACTIONS_HOST_WORKER is off",
    ),
)
async def delivers_a_webhook(trial: Trial) -> None:
    """A webhook node's request arrives at its receiver, with the run's values."""
    flow = trial.flow(trial.webhook("order"))
    await trial.seed(flow)
    await trial.open(flow, user="Ada", content="two")
    arrived = await trial.until_arrived("order")
    trial.equal(arrived[0].body, '{"user": "Ada", "content": "two"}', "the webhook arrived with another body")


@check(
    "EAGER-5",
    profile="core",
    clause="contract: Advancing; how-to: Call the plugin from your walk; spec 6.3, 5.3.6, 7.1",
    causes=(
        "NodeResult, or its reason or message, is part of what the end user's client gets: keep it for the flow's author",
        "the client gets the flow's items with the configs of action nodes: send content steps only",
    ),
)
async def keeps_nodes_from_the_user(trial: Trial) -> None:
    """The end user's client gets nothing of action nodes: no config, no secret, no result, and not why a run was halted."""
    words = {
        "the webhook's signing secret": trial.id("signing-secret"),
        "the value of a webhook's header": trial.id("header-token"),
        "a node's secret": trial.id("probe-secret"),
        "a node's config": trial.id("config-text"),
        "a node's message": trial.id("said-to-the-author"),
        "a node's reason": trial.id("reason"),
    }
    signing, header, secret, text, said, reason = words.values()
    for _ in pacings(trial):
        headers = [{"key": "Authorization", "value": header}]
        flow = trial.flow(
            trial.step("a"),
            trial.webhook("order", webhookSecret=signing, webhookHeaders=headers),
            trial.probe("node", probeSecret=secret, text=text, message=said),
            trial.step("b"),
            trial.probe("skipped", status="skipped", message=said, reason=reason),
            trial.probe("failed", status="failed", message=said, reason=reason),
            trial.probe("halting", status="failed", message=said, reason=reason, halt=True),
            trial.step("c"),
        )
        await trial.seed(flow)
        turns = await walked(trial, flow)
        ran = ["node", "skipped", "failed", "halting"]
        trial.equal(
            trial.ran(),
            ran,
            "the nodes did not run once each, in their order, so nothing is known of what the user gets",
        )
        for turn in turns:
            hides(trial, turn, words)


@check(
    "EAGER-6",
    profile="core",
    clause="contract: What a host provides (signing_secret), Ids; spec 5.3.6",
    causes=(
        "node answers from a cache, or from what was loaded at the start: read the node's config at each call",
        "node finds the node by its id alone, and not by organization, flow and node",
        "ids are compared without regard to upper and lower case: a column's collation",
        "the secret is trimmed or encoded: return it as it was saved",
    ),
)
async def signs_with_the_secret_of_now(trial: Trial) -> None:
    """A webhook is signed with the secret that its node has when it is sent, and not at all when it has none."""
    for _ in pacings(trial):
        for number, secret in enumerate(("first secret", "sécond “secret” ", None), start=1):
            config = {} if secret is None else {"webhookSecret": secret}
            flow = trial.flow(trial.step("a"), trial.webhook("order", **config))
            await trial.seed(flow)
            await walked(trial, flow, user="Ada")
            newest = (await trial.until_arrived("order", number))[-1]
            if secret is None:
                expected, what = "unsigned", "a webhook whose node has no secret any more is signed"
            else:
                expected, what = "verified", "a webhook is not signed with the secret that its node has now"
            trial.equal(trial.signature_of(newest, secret or ""), expected, f"{what} (opening {number})")
            body = '{"user": "Ada", "content": "content"}'
            trial.equal(newest.body, body, "the webhook arrived with another body")
        # Two nodes, as their ids say, though only in upper and lower case.
        nodes = [trial.webhook(name, webhookSecret=f"secret of {name}") for name in ("twin", "TWIN")]
        twins = trial.flow(trial.step("b"), *nodes, name="twins")
        await trial.seed(twins)
        await walked(trial, twins)
        for name in ("twin", "TWIN"):
            (arrival,) = await trial.until_arrived(name)
            trial.equal(
                trial.signature_of(arrival, f"secret of {name}"),
                "verified",
                f"of two nodes whose ids differ in upper and lower case only, {name} is not signed with its own secret",
            )


@check(
    "EAGER-9",
    profile="core",
    alone=True,  # a host with one organization for everybody has one chat connection, which other checks make, too
    clause="contract: Structs (Walk), Advancing, What a host does (Credentials); http: How an install ends; spec 2.1, 2.2, 4.1, 5.2, 7.1",
    causes=(
        "the host takes chat messages for nodes of its own: reach() every node whose type is in actions.node_types",
        "the organization_id of Walk is another than that of DashboardPrincipal, under which chat was connected",
        "the settings of chat do not reach the plugin",
        "dashboard_principal names the same person for everybody, or another one for the install than for the callback",
    ),
)
async def posts_where_the_organization_is_connected(trial: Trial) -> None:
    """A chat message fails before its organization has connected a workspace, is posted there once a person has, who is shown."""
    await trial.start()
    text = trial.id("posted")
    config = {
        "chatActionType": "channel",
        "chatChannelId": "C0GENERAL",
        "chatMessageText": f"{text} {{{{userId}}}}",
        "chatContinueOnFailure": False,
    }
    chat = Action(id=trial.id("chat"), type="chat_message", config=config)
    flow = trial.flow(trial.step("a"), chat, trial.probe("behind"))
    await trial.seed(flow)
    # For the one organization of a served host, other checks have connected chat.
    if not trial.is_served or "tenancy" in trial.session.claims:
        await trial.open(flow, user="Ada")
        trial.equal(
            trial.ran(), [], "a chat message that must not fail did not halt the run in which it failed"
        )
    workspace = await connect(trial, trial.author)
    card = (await trial.request("GET", "/integrations/chat/connection", who=trial.author)).json()["data"] or {}
    trial.equal(
        (card.get("workspace", {}).get("id"), card.get("status"), card.get("installedBy", {}).get("id")),
        (workspace.id, "active", trial.of_host(trial.author.id)),
        "the connection card does not show the workspace that was connected, and who has connected it",
    )
    await trial.open(flow, user="Zoë")
    posted = [
        (each.workspace, each.channel_id, each.text)
        for each in trial.session.provider.messages
        if each.text.startswith(text)
    ]
    expected = [(workspace.name, "C0GENERAL", f"{text} Zoë")]
    trial.equal(
        posted,
        expected,
        "the message was not posted, once, to the workspace that the organization has connected",
    )
    trial.equal(trial.ran(), ["behind"], "the walk did not continue after the message")


REPEATED: Final = (500, 503, 429)
"""Answers after which clients that repeat requests by themselves do so."""


@check(
    "EAGER-10",
    profile="core",
    clause="contract: What a host provides (transport); spec 6.1",
    causes=(
        "Host.transport, or what it is built on, repeats requests by itself: the plugin counts, logs and spaces attempts",
    ),
)
async def sends_each_attempt_once(trial: Trial) -> None:
    """An attempt that fails is one request: nothing but the plugin repeats it."""
    nodes = [
        trial.webhook(
            f"once-{status}",
            webhookUrl=trial.refusing(f"once-{status}", status),
            webhookRetryOnFailure=False,
        )
        for status in REPEATED
    ]
    flow = trial.flow(*nodes)
    await trial.seed(flow)
    await trial.open(flow)
    for status in REPEATED:
        name = f"once-{status}"
        await trial.until_arrived(name)
        await until_dead(trial, name)
        trial.equal(
            len(trial.arrivals(name)),
            1,
            f"one attempt of a delivery, which was answered {status}, arrived as several requests",
        )


@check(
    "EAGER-11",
    profile="core",
    clause="contract: Advancing, Structs (Walk, Node)",
    causes=(
        "the config that reach() gets is not all of what was saved: a field is left out, or has another type",
        "user_id of Walk is another one in each run of the same user",
    ),
)
async def sends_one_after_another(trial: Trial) -> None:
    """A node that sends one after another sends a user's second webhook when the first has arrived, which needs two attempts."""
    node = trial.webhook("ordered", webhookUrl=trial.hook("ordered", fails=1), webhookInOrder=True)
    flow = trial.flow(node)
    await trial.seed(flow)
    for content in ("first", "second"):
        await trial.open(flow, user="Ada", content=content)
    await trial.until_arrived("ordered", 4)
    order = ["first" if "first" in each.body else "second" for each in trial.arrivals("ordered")]
    trial.equal(
        order,
        ["first", "first", "second", "second"],
        "two webhooks of a user, which are to be sent one after another, were not",
    )
