"""Whose secret signs a test, and what a test lets its author learn (§5.3.6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from flowactions_hookspecs import (
    Agent,
    AgentNotFound,
    FlowActions,
    FlowNodeOrigin,
    Host,
    InTransaction,
    Node,
    NodeDraft,
    NodeType,
    Origin,
    OriginGone,
    OutboundWebhook,
    PluginOrigin,
    TestOutcome,
    UnsignedTestOrigin,
    Walk,
    hookimpl,
)
from flowactions_plugin.cli.outbox import show_delivery
from flowactions_plugin.egress.signature import sign
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.enqueue import unsigned_test
from flowactions_plugin.storage.schema import enqueue_rates
from tests.plugin.nodes.running import Running, running
from tests.queueing import a_delivery
from tests.recorder import Request, status
from tests.support import SmallHost, a_walk, development, services_of, transport_of
from tests.waiting import until

SECRET = "the-saved-secret"
TYPED = "typed-by-its-author"
UNSIGNED = "The test was sent unsigned: "
MARKED = UnsignedTestOrigin(organization_id="acme", agent_id="agent-1", flow_id="flow-1", node_id="never-saved")


class SavingHost(SmallHost):
    """A host whose nodes and secrets are found by all that an origin says."""

    def __init__(self, settings: dict[str, str]) -> None:
        super().__init__(settings)
        self.nodes: dict[tuple[str, str, str], Node] = {}
        self.asked: list[Origin] = []
        self.error: Exception | None = None

    def save(self, node_id: str, url: object, organization: str = "acme", kind: str = "webhook") -> None:
        config = {"webhookUrl": url, "webhookSecret": SECRET}
        self.nodes[organization, "flow-1", node_id] = Node(id=node_id, type=kind, config=config)

    async def signing_secret(self, origin: Origin) -> str | None:
        self.asked.append(origin)
        if self.error is not None:
            raise self.error
        assert isinstance(origin, FlowNodeOrigin)
        return str(self.nodes[origin.organization_id, origin.flow_id, origin.node_id].config["webhookSecret"])

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        return self.nodes.get((organization_id, flow_id, node_id))


class Forwarding:
    """A plugin whose node sends where its config says, under an origin that its config names."""

    __name__ = "forwarding"

    @hookimpl
    def flowactions_signing_secrets(self) -> Any:
        async def secret(origin: PluginOrigin) -> str:
            return "of the plugin"

        return {"own": secret}

    @hookimpl
    def flowactions_node_types(self, actions: FlowActions) -> list[NodeType]:
        async def reach(walk: Walk, node: Node) -> InTransaction:
            own = PluginOrigin(organization_id="acme", plugin="forwarding", name="own", id="1")
            of_node = FlowNodeOrigin(
                organization_id="acme", agent_id="agent-1", flow_id="flow-1", node_id="signed"
            )
            webhook = OutboundWebhook(
                organization_id=walk.organization_id,
                event_type="forwarded",
                entity=walk.run_id,
                url=node.config["webhookUrl"],
                origin=own if node.config.get("own") else of_node,
            )
            return InTransaction((await actions.prepare(webhook)).write)

        return [NodeType(name="forward", title="Forward", description="…", reach=reach)]


async def try_out(
    run: Running, node_id: str, url: object = None, kind: str = "webhook", **config: Any
) -> TestOutcome:
    values = {"webhookUrl": url or run.receiver.url, "webhookBody": "{}", **config}
    node = Node(id=node_id, type=kind, config=values)
    return await run.actions.test(NodeDraft(organization_id="acme", agent_id="agent-1", node=node), a_walk())


async def has_ended(run: Running, times: int) -> None:
    await until(lambda: len(run.host.finished) >= times)


async def origins(run: Running) -> list[Any]:
    rows = (await run.client.get("/v1/webhooks/outbox")).json()["data"]
    return [(await run.row(row["id"]))["origin"] for row in rows]


async def _admitted(_: str) -> int:
    return 0


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    host = SavingHost(development(database_url))
    async with running(host, [Forwarding()]) as started:
        # What is not about the rate is not limited by it.
        services_of(host).tests._admit = _admitted
        yield started


def signature(request: Request) -> str | None:
    names = dict(request.headers)
    return names.get("x-service-webhook-signature", b"").decode() or None


async def test_only_the_saved_node_at_its_own_url_is_signed(run: Running) -> None:
    """A test is signed where the organization's node sends, however the URL is spelled, and nowhere else."""
    host, url = run.host, run.receiver.url
    for node_id in ("signed", "moved"):
        host.save(node_id, f" {url}" if node_id == "signed" else f"{url}/elsewhere")
    host.save("of-another", url, organization="globex")
    host.save("of-another-type", url, kind="forward")
    host.save("unusable", 5)
    spelled = (url, f"{url}  ", url.replace("http://", "HTTP://"), f"{url}#part")
    for each in spelled:
        outcome = await try_out(run, "signed", each, webhookBody='{"a": 1}')
        assert (outcome.status, outcome.message) == ("delivered", None), each
    for request in run.receiver.requests:
        stamp = int(request.header("x-service-webhook-timestamp"))
        assert signature(request) == sign(SECRET, stamp, request.body)
    assert len(run.receiver.requests) == len(spelled)
    asked = len(host.asked)
    other = "its URL differs from the saved one."
    for node_id, address, why in (
        ("signed", f"{url}/other", other),
        ("signed", f"{url}?a=1", other),
        ("signed", url.replace("127.0.0.1", "localhost"), other),
        ("moved", url, other),
        ("unusable", url, other),
        ("never-saved", url, "save the node first."),
        ("of-another", url, "save the node first."),
        ("of-another-type", url, "save the node first."),
    ):
        outcome = await try_out(run, node_id, address, webhookSecret=TYPED)
        assert (outcome.status, outcome.message) == ("delivered", UNSIGNED + why), node_id
        assert signature(run.receiver.requests[-1]) is None
        outcome = await try_out(run, node_id, address)
        message = UNSIGNED + why if why == other else None
        assert (outcome.status, outcome.message) == ("delivered", message), node_id
        assert signature(run.receiver.requests[-1]) is None
    assert len(host.asked) == asked


async def test_a_secret_that_is_not_saved_yet_is_told(run: Running) -> None:
    """The saved node has no secret, so the test is unsigned and says why. A node without any secret gets no message."""
    config = {"webhookUrl": run.receiver.url, "webhookSecret": ""}
    run.host.nodes["acme", "flow-1", "bare"] = Node(id="bare", type="webhook", config=config)
    for typed, why in (
        (TYPED, f"{UNSIGNED}the saved node has no signing secret. Save the node first."),
        ("", None),
    ):
        outcome = await try_out(run, "bare", webhookSecret=typed)
        assert (outcome.status, outcome.message) == ("delivered", why)
        assert signature(run.receiver.requests[-1]) is None
    assert (await try_out(run, "bare", f"{run.receiver.url}/other")).message is None


async def test_no_answer_tells_whether_a_guessed_secret_is_right(run: Running) -> None:
    """With the right secret, a wrong one and none, check and test answer the same, and the same is sent.

    A node that was never saved and has no secret would not be signed either: nothing is said of that.
    """
    url = run.receiver.url
    run.host.save("signed", url)
    run.host.save("moved", f"{url}/elsewhere")
    for node_id in ("signed", "moved", "never-saved"):
        told = []
        for typed in (SECRET, TYPED, ""):
            node = Node(id=node_id, type="webhook", config={"webhookUrl": url, "webhookSecret": typed})
            draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
            outcome = await try_out(run, node_id, webhookSecret=typed)
            request = run.receiver.requests[-1]
            names = [name for name, _ in request.headers]
            preview = await run.actions.preview(draft, a_walk(run_id="r"))
            shown = [each for each in preview.headers if not each.key.endswith("-signature")]
            message = outcome.message
            if not typed and node_id == "never-saved":
                assert message is None
                message = f"{UNSIGNED}save the node first."
            said = (outcome.status, outcome.reason, message, outcome.status_code, outcome.response)
            told.append((said, names, await run.actions.check(draft), preview.problems, shown))
        assert told[0] == told[1] == told[2]
        signed = [each.value for each in preview.headers if each.key.endswith("-signature")]
        assert signed == []  # of the draft with no secret, whatever is saved


async def test_an_unsaved_webhook_is_sent_unsigned(run: Running) -> None:
    """First comes the answer, then why it was not signed; of one that is not sent, why."""
    body = '{"a": "{{name}}", "b": 1, "b": 2}'
    outcome = await try_out(run, "never-saved", webhookBody=body, webhookSecret=TYPED)
    assert (outcome.status, outcome.message) == ("delivered", f"{UNSIGNED}save the node first.")
    (request,) = run.receiver.requests
    assert (request.body, signature(request)) == (body.encode(), None)
    run.receiver.answer = lambda number: status(500)
    outcome = await try_out(run, "never-saved", webhookSecret=TYPED)
    assert outcome.message == f"The receiver answered 500. {UNSIGNED}save the node first."
    outcome = await try_out(run, "never-saved", "ftp://x")
    assert (outcome.status, outcome.message) == ("skipped", "The URL must start with http:// or https://.")
    outcome = await try_out(run, "never-saved", webhookBody="{")
    expected = "A name in double quotes or } is expected here. The body must be JSON (line 1, column 2)."
    assert (outcome.status, outcome.message) == ("skipped", expected)
    assert len(run.receiver.requests) == 2


async def test_an_unsigned_test_stays_unsigned(database_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The host is never asked for its secret: not for the test, not when it is retried, by itself or with others."""
    async with running(SavingHost(development(database_url)), [Forwarding()]) as run:
        run.receiver.answer = lambda number: status(500)
        outcome = await try_out(run, "never-saved", webhookSecret=TYPED)
        assert outcome.message == f"The receiver answered 500. {UNSIGNED}save the node first."
        await has_ended(run, 1)
        retries: list[tuple[str, dict[str, Any]]] = [
            (f"/{outcome.delivery_id}/retry", {}),
            ("/retry", {"all": True}),
        ]
        for times, (path, body) in enumerate(retries, 2):
            answer = await run.client.post(f"/v1/webhooks/outbox{path}", json=body)
            assert answer.status_code in {200, 202}
            await has_ended(run, times)
        assert [signature(request) for request in run.receiver.requests] == [None] * 3
        assert run.host.asked == []
        assert [each.origin for each in run.host.finished] == [MARKED] * 3
        assert (await try_out(run, "bare")).message == "The receiver answered 500."
        await has_ended(run, 4)
        assert (run.host.asked, run.host.finished.pop().origin.node_id) == ([], "bare")
        assert [each["kind"] for each in await origins(run)] == ["unsigned_test"] * 2
        page = await run.client.get(f"/integrations/webhooks/deliveries/{outcome.delivery_id}")
        assert "a test of a draft, sent unsigned" in page.text
        queries = Insights(services_of(run.host)._database, services_of(run.host)._settings)
        found = await queries.delivery(Scope(), outcome.delivery_id or "")
        assert found is not None
        show_delivery(found)
        assert "origin        a test of a draft, sent unsigned" in capsys.readouterr().out


async def test_a_host_that_cannot_tell_sends_nothing(run: Running) -> None:
    """What the host raises ends the test before anything is written; a node that has gone meanwhile is none."""
    run.host.save("signed", run.receiver.url)
    run.host.error = RuntimeError("no")
    outcome = await try_out(run, "signed")
    assert (outcome.status, outcome.reason) == ("failed", "host_error")
    assert await origins(run) == []
    run.host.error = OriginGone()
    assert (await try_out(run, "signed")).message == f"{UNSIGNED}save the node first."
    run.host.nodes["acme", "flow-1", "signed"] = "a node"
    assert (await try_out(run, "signed")).reason == "host_error"
    assert len(run.receiver.requests) == 1


async def test_a_plugins_node_cannot_borrow_a_nodes_secret(run: Running) -> None:
    """What it enqueues with a node's origin while it is tested is unsigned; in a walk, and with its own, it is signed."""
    run.host.save("signed", f"{run.receiver.url}/elsewhere")
    outcome = await try_out(run, "signed", kind="forward")
    assert (outcome.status, outcome.message) == (
        "delivered",
        f"{UNSIGNED}tests of this type of node are not signed.",
    )
    assert run.host.asked == []
    outcome = await try_out(run, "signed", kind="forward", own=True)
    assert (outcome.status, outcome.message) == ("delivered", None)
    node = Node(id="signed", type="forward", config={"webhookUrl": run.receiver.url})
    assert (await run.actions.reach(a_walk(), node)).status == "queued"
    await until(lambda: len(run.receiver.requests) == 3)
    assert [signature(each) is not None for each in run.receiver.requests] == [False, True, True]


class TestAgents:
    """An agent is looked up before anything else."""

    @pytest.mark.parametrize("name", ["check", "preview", "test"])
    async def test_another_organizations_agent_is_none(self, database_url: str, name: str) -> None:
        """It is a 404, and raises: before the type is looked at, a test is counted, or the host is asked for more."""
        host = SavingHost(development(database_url))
        host.agents = [Agent(id="of-globex", name="G", organization_id="globex")]
        host.save("signed", "http://127.0.0.1:9/")
        actions = FlowActions.load(host)
        async with (
            actions.lifespan(tasks=False),
            httpx.AsyncClient(transport=transport_of(actions), base_url="http://host") as client,
        ):
            answers = set()
            for agent in ("of-globex", "of-nobody"):
                for kind in ("webhook", "nobody"):
                    config = {"webhookUrl": "http://127.0.0.1:9/"}
                    node = {"type": kind, "id": "signed", "config": config}
                    answer = await client.post(
                        f"/integrations/nodes/{name}", json={"agentId": agent, "node": node}
                    )
                    answers.add((answer.status_code, answer.text))
                    draft = NodeDraft(
                        organization_id="acme",
                        agent_id=agent,
                        node=Node(id="signed", type=kind, config=config),
                    )
                    with pytest.raises(AgentNotFound):
                        await getattr(actions, name)(draft, *([] if name == "check" else [a_walk()]))
            ((code, text),) = answers
            assert (code, '"code":"not_found"' in text) == (404, True)
            async with services_of(host)._database.read() as connection:
                assert (await connection.execute(enqueue_rates.select())).all() == []
            assert host.asked == []

    async def test_a_host_without_agents_is_not_asked(self, database_url: str) -> None:
        """Nodes can be tested in it all the same: what is signed does not depend on the agent."""

        class Agentless(SavingHost):
            agent = Host.agent

        host = Agentless(development(database_url))
        actions = FlowActions.load(host)
        draft = NodeDraft(
            organization_id="acme",
            agent_id="any",
            node=Node(id="n", type="webhook", config={"webhookMethod": "GET"}),
        )
        async with actions.lifespan(tasks=False):
            assert (await actions.test(draft, a_walk())).reason == "missing_url"
            assert [each.code for each in await actions.check(draft)] == ["missing_url"]


def test_what_a_test_has_started_is_not_marked_after_it() -> None:
    """A task that a node starts in its test keeps the test's context, and its later webhooks are signed as ever."""
    delivery = a_delivery()
    with unsigned_test(MARKED) as test:
        assert test.applied(delivery).origin == MARKED
    assert test.applied(delivery) is delivery
