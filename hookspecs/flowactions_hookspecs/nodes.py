"""A walk, the action nodes it reaches, and the results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import Struct, field

from flowactions_hookspecs.base import AsyncConnection, ContractStruct
from flowactions_hookspecs.drafts import ConfigProblem, Preview

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
    """One run of a flow by one end user, at the moment when a node is reached. Pure data.

    Args:
        organization_id: the tenant; no data of another tenant is used.
        agent_id: the agent that runs the flow.
        flow_id: the flow.
        run_id: new for every run of the flow; event ids and deferred records depend on it.
        user_id: the end user's id, substituted for ``{{userId}}``.
        content: the content of the message that triggered the run, substituted for ``{{content}}``.
        pacing: `Eager` in a single-shot flow, `Deferred` in a client-paced one (§3.2).
        visit: the name of this passage through the node, for flows that can reach a node more than once in a
            run. Each passage has another name (for example ``outer:3/inner:1``). When a walk is repeated after
            a crash, its passages have the same names, so the host stores them. Event ids and deferred records
            depend on it.
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
    """An action node of the flow.

    Args:
        id: the node's id, unique within its flow.
        type: the name of a `NodeType`.
        config: for ``webhook`` the node's ``data.config`` (§2.4), for ``chat_message`` its ``data`` (§2.1). It
            may contain a secret, so the repr omits it.
        version: the `NodeType.version` for which the config was written.
    """

    id: str
    type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1

    def __repr__(self) -> str:
        return f"Node(id={self.id!r}, type={self.type!r}, config=…)"


class NodeDraft(ContractStruct, frozen=True, kw_only=True):
    """A node as its author has it in the editor, saved or not.

    Args:
        organization_id: the tenant of the author.
        agent_id: the agent whose flow is edited.
        node: the node; its config may be incomplete or wrong.
        ask_provider: whether `check` may call a provider over the network, for example to see whether a bot is
            in a channel.
    """

    organization_id: str
    agent_id: str
    node: Node
    ask_provider: bool = False


class NodeResult(ContractStruct, frozen=True, kw_only=True):
    """The result of reaching a node.

    Args:
        node_id: the node. `FlowActions` fills it in for a node type that leaves it empty.
        status: ``sent`` (done), ``queued`` (in the outbox), ``recorded`` (waits for its step),
            ``skipped`` (nothing to do or not allowed), ``failed``.
        reason: a stable word for programs; ``None``: no failure. The list is open; a plugin publishes its own.
        message: what a person should know or do; for flow authors, never for end users.
        halt: whether the walk must stop at this node.
        delivery_id: the outbox row's id; ``None``: no row was written.
    """

    node_id: str = ""
    status: Status
    reason: str | None = None
    message: str | None = None
    halt: bool = False
    delivery_id: str | None = None


def plugin_failed(node_id: str) -> NodeResult:
    """Return the result of a node whose plugin breaks the contract."""
    return NodeResult(node_id=node_id, status="failed", reason="plugin_error", message=PLUGIN_ERROR_MESSAGE)


class InTransaction(Struct, frozen=True):
    """The return value of `NodeType.reach` for an effect that is part of a database transaction.

    Args:
        write: ``write(transaction) -> NodeResult`` runs in the transaction that also removes the node's deferred
            record: both are committed, or neither is. It does SQL only, waits for nothing else, and may be called again.
    """

    write: Callable[[AsyncConnection], Awaitable[NodeResult]]


class Advanced(ContractStruct, frozen=True, kw_only=True):
    """The result of advancing to a content step.

    Args:
        state: what the walk does now. ``done``: move on; the nodes that waited for the step have run, or the plugin
            runs them as soon as it can. ``running``: another call runs them, or those of an earlier step; do not move,
            call again. ``halted``: stop; a node halted the run, now or before. ``unavailable``, only with a transaction:
            move on, and call again for that step later. The database, a host method or a plugin failed, or this process
            does not offer a node's type.
        results: the results of the nodes that this call has run, in walk order.
    """

    state: AdvancedState
    results: Sequence[NodeResult] = ()


Reach: TypeAlias = Callable[[Walk, Node], Awaitable[NodeResult | InTransaction]]
Check: TypeAlias = Callable[[NodeDraft], Awaitable[Sequence[ConfigProblem]]]
MakePreview: TypeAlias = Callable[[NodeDraft, Walk], Awaitable[Preview]]


class NodeType(ContractStruct, frozen=True, kw_only=True):
    """A node type: what the flow editor shows, and what such a node does. Its texts are for flow authors.

    Args:
        name: unique in a host, for example ``webhook``.
        title: the palette's label.
        description: one sentence for the palette and the form's head.
        reach: ``await reach(walk, node)`` runs the node. It is called only to run it, with each pacing: the
            runtime does the recording, order, lease, recovery and halting. If the effect has happened, it
            returns a `NodeResult` (a deferred node then runs at least once); otherwise an `InTransaction`.
        version: number of the config's format; raise it when the meaning of the config changes.
        category: the palette's heading.
        icon: SVG text, drawn in ``currentColor``.
        docs_url: a page where an author reads more.
        config_schema: JSON Schema of the config, without ``$schema``; see `config_schema`.
        ui_schema: the uiSchema of react-jsonschema-form for that schema.
        pickers: field name → path of a route that lists the field's choices as a `PickerPage`.
        template_variables: variable name → its meaning, for fields that the ``ui_schema`` marks with
            ``"ui:options": {"templates": true}``. Fields with JSON are marked with ``"language": "json"``.
        secret_fields: names of config fields with secrets: masked in previews, never recorded.
        check: ``await check(draft)`` returns the problems of a config while an author edits it.
        preview: ``await preview(draft, walk)`` returns what the node would send; nothing is sent or written.
            Secret fields of the draft are already masked.
        available: whether such a node can work in this host now.
        unavailable_reason: why it cannot, in a sentence for flow authors: it names no setting.
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
        """Return all fields except the callables, as JSON values with camelCase names, for an editor."""
        names = zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True)
        values = {
            wire: getattr(self, name) for name, wire in names if name not in {"reach", "check", "preview"}
        }
        return {**values, "secretFields": list(self.secret_fields)}
