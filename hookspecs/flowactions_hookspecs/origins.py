"""Where a delivery comes from; by its origin, the signing secret is found (§5.3.6)."""

from __future__ import annotations

from typing import TypeAlias

from flowactions_hookspecs.base import ContractStruct


class ExperienceTriggerRef(
    ContractStruct, frozen=True, kw_only=True, tag_field="source", tag="experience_trigger"
):
    """Points at ``settings.triggers[triggerRowId].actions[actionIndex]`` of an experience (§2.8)."""

    organization_id: str
    agent_id: str
    experience_id: str
    trigger_row_id: str
    action_index: int


class NodeTriggerRef(ContractStruct, frozen=True, kw_only=True, tag_field="source", tag="node_trigger"):
    """Points at an action in a flow node's trigger group (§2.8).

    Args:
        question_id: the question of a survey-question trigger (§4.2).
    """

    organization_id: str
    agent_id: str
    experience_id: str
    node_id: str
    node_trigger_group_id: str
    action_index: int
    question_id: str | None = None


LogicActionRef: TypeAlias = ExperienceTriggerRef | NodeTriggerRef


class FlowNodeOrigin(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="flow_node"):
    """A delivery came from a webhook node of a flow."""

    organization_id: str
    agent_id: str
    flow_id: str
    node_id: str


class ChatNodeOrigin(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="chat_node"):
    """A delivery is the message of a chat-message node (``FLOWACTIONS_CHAT_DELIVERY=queued``); `Host.signing_secret` is not asked."""

    organization_id: str
    agent_id: str
    flow_id: str
    node_id: str


class LogicActionOrigin(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="logic_action"):
    """A delivery came from a logic action."""

    ref: LogicActionRef


class HostOrigin(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="host"):
    """A delivery came from the host itself, by `FlowActions.enqueue`.

    Args:
        organization_id: the tenant.
        name: the kind of webhook in the host, for example ``order-placed``.
        id: distinguishes origins of one name, for example the id of a subscription.
    """

    organization_id: str
    name: str
    id: str


class PluginOrigin(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="plugin"):
    """A delivery came from another plugin. The plugin's own resolver gives its signing secret.

    Args:
        organization_id: the tenant.
        plugin: the plugin's name: the name of its entry point.
        name: a key of the mapping that the plugin's `flowactions_signing_secrets` returns.
        id: distinguishes origins of one name.
    """

    organization_id: str
    plugin: str
    name: str
    id: str


class UnsignedTestOrigin(ContractStruct, frozen=True, kw_only=True, tag_field="kind", tag="unsigned_test"):
    """A delivery came from a test of a draft, and is sent unsigned: `Host.signing_secret` is not asked (§5.3.6).

    Flow and node are what the author said: nobody has looked whether the organization has them.
    """

    organization_id: str
    agent_id: str
    flow_id: str
    node_id: str


Origin: TypeAlias = (
    FlowNodeOrigin | ChatNodeOrigin | LogicActionOrigin | HostOrigin | PluginOrigin | UnsignedTestOrigin
)
"""Where a delivery comes from. The union gains members in later versions: keep a default branch."""
