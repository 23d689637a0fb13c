"""A walk, the action nodes it reaches, and the results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.drafts import ConfigProblem, NodeDraft, Preview

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection
else:
    # Aliases are made at run time, and the contract imports no SQLAlchemy.
    AsyncConnection = Any

PLUGIN_ERROR_MESSAGE: Final = "The plugin failed unexpectedly; the server's log has the details."

AdvancedState: TypeAlias = Literal["done", "running", "halted", "unavailable"]
Status: TypeAlias = Literal["sent", "queued", "recorded", "skipped", "failed"]


class Eager(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="eager"):
    """The pacing of a single-shot flow: a node runs when the walk reaches it (§3.2)."""


class Deferred(Struct, frozen=True, rename="camel", tag_field="kind", tag="deferred"):
    """The pacing of a client-paced flow: a node is recorded and runs when the user gets to its step (§3.2).

    Args:
        next_step_id: the content step that the node precedes; ``None`` is the end of the flow.
    """

    next_step_id: str | None


Pacing: TypeAlias = Eager | Deferred

EAGER = Eager()


class Walk(ContractStruct, frozen=True, kw_only=True):
    """One run of a flow by one end user, as it stands when a node is reached. Pure data.

    Args:
        organization_id: the tenant; nothing of another tenant is touched.
        agent_id: the agent that runs the flow.
        flow_id: the flow.
        run_id: new for every run of the flow; event ids and deferred records depend on it.
        user_id: the end user's id, substituted for ``{{userId}}``.
        content: the triggering message content, substituted for ``{{content}}``.
        pacing: `Eager` in a single-shot flow, `Deferred` in a client-paced one (§3.2).
        visit: which passage through the node this is, when a flow can reach a node more than once in a run: the same
            when a walk is repeated after a crash, another for each passage (for example ``outer:3/inner:1``). The
            host keeps it. Event ids and deferred records depend on it.
    """

    organization_id: str
    agent_id: str
    flow_id: str
    run_id: str
    user_id: str = ""
    content: str = ""
    pacing: Pacing = EAGER
    visit: str = "1"


class Node(ContractStruct, frozen=True, kw_only=True):
    """An action node as it stands in the flow.

    Args:
        id: the node's id, unique within its flow.
        type: the name of a `NodeType`.
        config: for ``webhook`` the node's ``data.config`` (§2.4), for ``chat_message`` its ``data`` (§2.1).
            It may hold a secret, so it is left out of the repr.
        version: the `NodeType.version` for which the config was written.
    """

    id: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1

    def __repr__(self) -> str:
        return f"Node(id={self.id!r}, type={self.type!r}, config=…)"


class NodeResult(ContractStruct, frozen=True, kw_only=True):
    """The result of reaching a node.

    Args:
        node_id: the node. `FlowActions` fills it in for a node type that leaves it empty.
        status: ``sent`` (done), ``queued`` (in the outbox), ``recorded`` (waits for its step),
            ``skipped`` (nothing to do or not allowed), ``failed``.
        reason: a stable word for programs, ``None`` when all went well. The list is open; a plugin publishes its own.
        message: what a person should know or do; for flow authors, never for end users.
        halt: whether the walk must stop at this node.
        delivery_id: the outbox row's id, when there is one.
    """

    node_id: str = ""
    status: Status
    reason: str | None = None
    message: str | None = None
    halt: bool = False
    delivery_id: str | None = None


def plugin_failed(node_id: str) -> NodeResult:
    """Returns the result of a node whose plugin does not do what the contract says."""
    return NodeResult(node_id=node_id, status="failed", reason="plugin_error", message=PLUGIN_ERROR_MESSAGE)


class InTransaction(Struct, frozen=True):
    """What `NodeType.reach` returns for an effect that a database transaction can hold.

    Args:
        write: ``write(transaction) -> NodeResult`` runs in the transaction that also removes the node's deferred
            record: both are there or neither is. It does SQL only, waits for nothing else, and may be called again.
    """

    write: Callable[[AsyncConnection], Awaitable[NodeResult]]


class Advanced(ContractStruct, frozen=True, kw_only=True):
    """The result of advancing to a content step.

    Args:
        state: what the walk does now. ``done``: move on; everything that waited for the step has run. ``running``:
            another call runs it; do not move, ask again. ``halted``: stop; a node halted the run, now or before.
            ``unavailable``: move on, and call again for that step later; the database failed, or a node is of a type
            that this process does not offer, so not everything has run.
        results: of the nodes that this call has run, in walk order.
    """

    state: AdvancedState
    results: Sequence[NodeResult] = ()


Reach: TypeAlias = Callable[[Walk, Node], Awaitable[NodeResult | InTransaction]]
Check: TypeAlias = Callable[[NodeDraft], Awaitable[Sequence[ConfigProblem]]]
MakePreview: TypeAlias = Callable[[NodeDraft, Walk], Awaitable[Preview]]


class NodeType(ContractStruct, frozen=True, kw_only=True):
    """A node type: what the flow editor shows, and what reaching such a node does. Its texts are for flow authors.

    Args:
        name: unique in a host, for example ``webhook``.
        title: the palette's label.
        description: one sentence for the palette and the form's head.
        reach: ``await reach(walk, node)`` runs the node. It is called only to run it, whatever the pacing: recording,
            order, lease, recovery and halting are the runtime's. It returns a `NodeResult` when the effect has
            happened (a deferred node then runs at least once), or `InTransaction`.
        version: raised when the config's meaning changes.
        category: the palette's heading.
        icon: SVG text, drawn in ``currentColor``.
        docs_url: where an author reads more.
        config_schema: JSON Schema of the config, without ``$schema``; see `config_schema`.
        ui_schema: the uiSchema of react-jsonschema-form that goes with it.
        pickers: field name → path of a route that lists the field's choices as a `PickerPage`.
        template_variables: variable name → what it stands for, for fields that the ``ui_schema`` marks with
            ``"ui:options": {"templates": true}``. Fields that hold JSON are marked with ``"language": "json"``.
        secret_fields: names of config fields that hold secrets: masked in previews, never recorded.
        check: ``await check(draft)`` returns what is wrong with a config while an author edits it.
        preview: ``await preview(draft, walk)`` returns what would leave; nothing is sent or written. Secret fields of
            the draft are masked already.
        available: whether such a node can work in this host now.
        unavailable_reason: why not, in a sentence for flow authors: it names no setting.
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
    ui_schema: Mapping[str, Any] = field(default_factory=dict)
    pickers: Mapping[str, str] = field(default_factory=dict)
    template_variables: Mapping[str, str] = field(default_factory=dict)
    secret_fields: Sequence[str] = ()
    check: Check | None = None
    preview: MakePreview | None = None
    available: bool = True
    unavailable_reason: str | None = None

    def describe(self) -> dict[str, Any]:
        """Returns everything but the callables, camelCase and JSON-ready: what an editor's palette needs."""
        names = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        values = {
            wire: getattr(self, name) for name, wire in names if name not in {"reach", "check", "preview"}
        }
        return {**values, "secretFields": list(self.secret_fields)}
