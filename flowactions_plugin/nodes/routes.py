"""Ready routes for a flow editor: check, preview and test the node that an author edits."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from litestar import Router, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta
from msgspec.structs import asdict

from flowactions_hookspecs import (
    ConfigProblem,
    DashboardPrincipal,
    FlowActions,
    Node,
    NodeDraft,
    Preview,
    TestOutcome,
    Walk,
)
from flowactions_plugin.clock import new_token
from flowactions_plugin.http.auth import PRINCIPAL, RouteGuard
from flowactions_plugin.http.openapi import openapi_spec, plugin_router
from flowactions_plugin.http.strict import AgentId, Id

PATH: Final = "/integrations/nodes"

BODY_BYTES: Final = 2 << 20
"""A webhook's body of a mebibyte, escaped as JSON text."""


class DraftNode(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The node as it is in the editor, saved or not."""

    type: Annotated[Id, Meta(description="The name of a node type.", examples=["webhook"])]
    id: Annotated[Id, Meta(description="Of the node in its flow.")] = "draft"
    config: Annotated[
        dict[str, Any],
        Meta(
            description="As the editor's form has it.",
            examples=[{"webhookUrl": "https://example.com/hooks", "webhookBody": '{"user": {{userId}}}'}],
        ),
    ] = {}
    version: Annotated[int, Meta(description="The node type's version for which the config was written.")] = 1


class DraftWalk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The run in which the node is previewed or tested."""

    flow_id: Annotated[Id, Meta(description="The flow that the node is in.")] = "draft"
    run_id: Annotated[Id | None, Meta(description="A new one when it is not given.")] = None
    user_id: Annotated[str, Meta(description="Stands for {{userId}}.")] = "sample-user"
    content: Annotated[str, Meta(description="Stands for {{content}}.")] = "This is a sample message."
    visit: Id = "1"


class DraftCheck(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A node to check."""

    agent_id: Annotated[AgentId, Meta(description="The agent whose flow is edited.")]
    node: DraftNode
    ask_provider: Annotated[
        bool, Meta(description="Whether a provider may be asked, for example if the app is in the channel.")
    ] = False


class DraftRun(DraftCheck, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A node to preview or test, and the run that gives the variables."""

    walk: DraftWalk = msgspec.field(default_factory=DraftWalk)


class CheckAnswer(msgspec.Struct):
    """What is wrong; empty when nothing is."""

    data: list[ConfigProblem]


class PreviewAnswer(msgspec.Struct):
    """What would leave."""

    data: Preview


class TestAnswer(msgspec.Struct):
    """What came of the test."""

    data: TestOutcome


HINT: Final = "a JSON object with agentId and node"


@post(
    "/check",
    status_code=200,
    summary="Check a node",
    **openapi_spec("dashboard", {}, "not_found", changes=True, reads=True, body=HINT),
)
async def check_node(
    principal: NamedDependency[DashboardPrincipal],
    actions: NamedDependency[FlowActions],
    data: JSONBody[DraftCheck],
) -> CheckAnswer:
    """Tell what is wrong with a node's config. Nothing is sent or written.

    A problem of severity ``error`` keeps the node from working; with a ``warning`` it works, perhaps not as meant.
    """
    return CheckAnswer(list(await actions.check(_draft(principal, data))))


@post(
    "/preview",
    status_code=200,
    summary="Preview a node",
    **openapi_spec("dashboard", {}, "not_found", changes=True, reads=True, body=HINT),
)
async def preview_node(
    principal: NamedDependency[DashboardPrincipal],
    actions: NamedDependency[FlowActions],
    data: JSONBody[DraftRun],
) -> PreviewAnswer:
    """Show what would leave if the node ran now: secrets masked, variables filled in. Nothing is sent or written."""
    return PreviewAnswer(await actions.preview(_draft(principal, data), _walk(principal, data)))


@post(
    "/test",
    status_code=200,
    summary="Test a node",
    **openapi_spec("dashboard", {}, "not_found", changes=True, body=HINT),
)
async def try_node(
    principal: NamedDependency[DashboardPrincipal],
    actions: NamedDependency[FlowActions],
    data: JSONBody[DraftRun],
) -> TestAnswer:
    """Run a node once for real: a webhook makes one attempt, a message is posted.

    At most ten a minute and organization; one more is ``limited``. It takes two seconds longer than an attempt at the most, and is
    ``pending`` when a webhook's attempt has not ended by then. A webhook is signed with the secret of the saved node, if it
    goes to the saved node's URL; otherwise it is sent unsigned, and the message says why.
    """
    return TestAnswer(await actions.test(_draft(principal, data), _walk(principal, data)))


def nodes_router(guard: RouteGuard, actions: FlowActions) -> Router:
    """Make the router of the flow editor's routes, for the node types of all plugins."""
    return plugin_router(
        PATH,
        *(check_node, preview_node, try_node),
        dependencies={"principal": PRINCIPAL, "actions": actions},
        guards=[guard.guard()],
        body_bytes=BODY_BYTES,
        tags=["Nodes"],
    )


def _draft(principal: DashboardPrincipal, data: DraftCheck) -> NodeDraft:
    # The organization is the principal's, whatever else a body says.
    return NodeDraft(
        organization_id=principal.organization_id,
        agent_id=data.agent_id,
        node=Node(**asdict(data.node)),
        ask_provider=data.ask_provider,
    )


def _walk(principal: DashboardPrincipal, data: DraftRun) -> Walk:
    given = asdict(data.walk) | {"run_id": data.walk.run_id or new_token()}
    return Walk(organization_id=principal.organization_id, agent_id=data.agent_id, **given)
