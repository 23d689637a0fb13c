"""A walk, the action nodes it reaches, and what came of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import field

from flowactions_hookspecs.base import ContractStruct

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection
else:
    # Aliases are made at run time, and the contract imports no SQLAlchemy.
    AsyncConnection = Any

Pacing: TypeAlias = Literal["eager", "deferred"]
AdvancedState: TypeAlias = Literal["done", "running", "halted", "unavailable"]
Status: TypeAlias = Literal["sent", "queued", "recorded", "skipped", "failed"]


class Walk(ContractStruct, frozen=True):
    """One run of a flow by one end user, as it stands when a node is reached.

    Args:
        organization_id: the tenant; nothing of another tenant is touched.
        agent_id: the agent that runs the flow.
        flow_id: the flow.
        run_id: new for every run of the flow; event ids and deferred records hang on it.
        user_id: the end user's id, substituted for ``{{userId}}``.
        content: the triggering message content, substituted for ``{{content}}``.
        pacing: ``eager`` in a single-shot flow, ``deferred`` in a client-paced one (§3.2).
        next_step_id: the content step that the node precedes; ``None`` is the end of the flow.
            Only read when the pacing is ``deferred``.
        visit: which passage through the node this is, when a flow can reach a node more than once in a run: the same
            when a walk is repeated after a crash, another for each passage (for example ``outer:3/inner:1``). Event
            ids and deferred records hang on it.
    """

    organization_id: str
    agent_id: str
    flow_id: str
    run_id: str
    user_id: str = ""
    content: str = ""
    pacing: Pacing = "eager"
    next_step_id: str | None = None
    visit: str = "1"


class Node(ContractStruct, frozen=True):
    """An action node as it stands in the flow.

    Args:
        id: the node's id, unique within its flow.
        type: the name of a `NodeType`.
        config: for ``webhook`` the node's ``data.config`` (§2.4), for ``chat_message`` its ``data`` (§2.1).
            It may hold a secret, so it is left out of the repr.
    """

    id: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Node(id={self.id!r}, type={self.type!r}, config=…)"


class NodeResult(ContractStruct, frozen=True):
    """What came of reaching a node.

    Args:
        node_id: the node.
        status: ``sent`` (done), ``queued`` (in the outbox), ``recorded`` (waits for its step),
            ``skipped`` (nothing to do or not allowed), ``failed``.
        reason: a stable word for programs, ``None`` when all went well.
        message: what a person should know or do; for flow authors, never for end users.
        halt: whether the walk must stop at this node.
        delivery_id: the outbox row's id, when there is one.
    """

    node_id: str
    status: Status
    reason: str | None = None
    message: str | None = None
    halt: bool = False
    delivery_id: str | None = None


class Advanced(ContractStruct, frozen=True, kw_only=True):
    """What came of advancing to a content step.

    Args:
        state: what the walk does now. ``done``: move on; everything that waited for the step has run. ``running``:
            another call runs it; do not move, ask again. ``halted``: stop; a node halted the run, now or before.
            ``unavailable``: move on, and call again for that step later; the database failed, or a node is of a type
            that this process does not offer, so not everything has run.
        results: of the nodes that this call has run, in walk order.
    """

    state: AdvancedState
    results: Sequence[NodeResult] = ()


Reach: TypeAlias = Callable[[Walk, Node, AsyncConnection | None], Awaitable[NodeResult]]
"""Called by `FlowActions.reach` with the walk, the node, and the host's transaction when there is one."""

StepListener: TypeAlias = Callable[[Walk, str | None, AsyncConnection | None], Awaitable[Advanced]]
"""Called by `FlowActions.advance` with the walk, the content step that the user advanced to, and the transaction."""


class NodeType(ContractStruct, frozen=True):
    """A node type: what the flow editor shows, and what reaching such a node does.

    Args:
        name: unique in a host, for example ``webhook``.
        title: the palette's label.
        description: one sentence for the palette and the form's head.
        reach: async callable that runs the node, or records it when the walk's pacing is deferred.
        version: raised when the config's meaning changes.
        category: the palette's heading.
        icon: SVG text, drawn in ``currentColor``.
        docs_url: where an author reads more.
        config_schema: JSON Schema of the config, without ``$schema``; see `config_schema`.
        ui: the uiSchema of react-jsonschema-form that goes with it.
        options: field name → path of a route that lists the field's choices (a picker).
        template_variables: variable name → what it stands for, for fields that the ``ui`` marks with
            ``"ui:options": {"templates": true}``.
        available: whether such a node can work in this host now.
        unavailable_reason: why not, and what an operator should do.
    """

    name: str
    title: str
    description: str
    reach: Reach
    version: int = 1
    category: str = "Actions"
    icon: str = ""
    docs_url: str | None = None
    config_schema: Mapping[str, Any] = field(default_factory=dict)
    ui: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    template_variables: Mapping[str, str] = field(default_factory=dict)
    available: bool = True
    unavailable_reason: str | None = None

    def describe(self) -> dict[str, Any]:
        """Give everything but ``reach``, camelCase and JSON-ready: what an editor's palette needs."""
        names = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        return {wire: getattr(self, name) for name, wire in names if name != "reach"}
