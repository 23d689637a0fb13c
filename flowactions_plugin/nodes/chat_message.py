"""The chat-message node: its config, and posting when a walk reaches it (§2.1, §6.3, §7.1)."""

from __future__ import annotations

import logging
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from flowactions_hookspecs import Node, NodeResult, NodeType, Walk, config_schema
from flowactions_hookspecs.nodes import Reach
from flowactions_plugin.chat.connection import Connections
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.errors import NotConfigured, StorageUnavailable
from flowactions_plugin.nodes.action import Action
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.nodes.template import VARIABLES, chat_message, variables_of

log = logging.getLogger("flowactions")

NAME: Final = "chat_message"

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="currentColor" '
    'stroke-width="2" stroke-linecap="round" stroke-linejoin="round">'
    '<path d="M21 12a8 8 0 0 1-8 8H4l2-3.5A8 8 0 1 1 21 12Z"/><path d="M9 10h7M9 14h4"/></svg>'
)


class ChatMessageConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The node's ``data`` (§2.1). A stored action type other than ``dm`` runs as ``channel``."""

    chat_message_text: Annotated[
        str,
        Meta(
            title="Message",
            description="*bold*, _italic_ and `code` work. Cut at 4000 characters.",
            min_length=1,
        ),
    ]
    chat_action_type: Annotated[Literal["channel", "dm"], Meta(title="Send to")] = "channel"
    chat_channel_id: (
        Annotated[
            str,
            Meta(
                title="Channel", description="The channel's ID. The app must be in the channel.", min_length=1
            ),
        ]
        | UnsetType
    ) = UNSET
    chat_user_id: (
        Annotated[str, Meta(title="Person", description="The member's ID.", min_length=1)] | UnsetType
    ) = UNSET
    chat_retry_on_failure: Annotated[
        bool,
        Meta(title="Try again when sending fails", description="Up to 4 attempts within a few seconds."),
    ] = False
    chat_continue_on_failure: Annotated[
        bool,
        Meta(
            title="Continue when the message cannot be sent",
            description="Off: the flow stops here when sending fails.",
        ),
    ] = True


UI: Final[dict[str, Any]] = {
    "ui:order": [
        "chatActionType",
        "chatChannelId",
        "chatUserId",
        "chatMessageText",
        "chatRetryOnFailure",
        "chatContinueOnFailure",
        "*",
    ],
    "chatMessageText": {
        "ui:widget": "textarea",
        "ui:placeholder": "{{userId}} wrote: {{content}}",
        "ui:options": {"rows": 4, "templates": True},
    },
}


def _schema() -> dict[str, Any]:
    """Give the config's schema: the choice of target decides which target field is there."""
    schema = config_schema(ChatMessageConfig)
    properties = schema["properties"]
    choice = properties["chatActionType"]
    del choice["enum"]
    choice["type"] = "string"
    choice["oneOf"] = [
        {"const": "channel", "title": "A channel"},
        {"const": "dm", "title": "A person (direct message)"},
    ]
    branches = [
        {
            "properties": {"chatActionType": {"const": action}, field: properties.pop(field)},
            "required": [field],
        }
        for action, field in (("channel", "chatChannelId"), ("dm", "chatUserId"))
    ]
    return {**schema, "dependencies": {"chatActionType": {"oneOf": branches}}}


def node_type(reach: Reach, options: dict[str, str], unavailable: NotConfigured | None) -> NodeType:
    """Describe the node type to the flow editor.

    Args:
        reach: runs such a node.
        options: field → route of its picker.
        unavailable: why chat cannot be used in this host.
    """
    return NodeType(
        name=NAME,
        title="Chat message",
        description="Post a message to a channel or a person in your chat workspace.",
        category="Integrations",
        icon=ICON,
        config_schema=_schema(),
        ui=UI,
        options=options,
        template_variables=VARIABLES,
        available=unavailable is None,
        unavailable_reason=None if unavailable is None else str(unavailable),
        reach=reach,
    )


class ChatMessageNode:
    """What reaching a chat-message node does. Fail-open: the walk goes on unless the config says otherwise.

    Args:
        connections: the chat connections; ``None`` when chat is not configured.
    """

    def __init__(self, connections: Connections | None) -> None:
        self._connections = connections

    async def prepare(self, walk: Walk, node: Node) -> Action:
        """Leave everything to be done after the transaction: a message cannot be rolled back."""
        return Action(partial(self._run, walk, node))

    async def _run(self, walk: Walk, node: Node) -> NodeResult:
        config, _ = read_config(ChatMessageConfig, node.config)
        try:
            await self._send(walk, config)
        except _NotSent as failure:
            # The exact lines of §6.3.
            log.warning("chat_message node %s not sent: %s", node.id, failure.reason)
            return NodeResult(
                node_id=node.id,
                status="failed",
                reason=failure.reason,
                message=failure.advice,
                halt=not config.chat_continue_on_failure,
            )
        log.info("chat_message node %s sent", node.id)
        return NodeResult(node_id=node.id, status="sent")

    async def _send(self, walk: Walk, config: ChatMessageConfig) -> None:
        connections = self._connections
        try:
            stored = None if connections is None else await connections.get(walk.organization_id)
        except StorageUnavailable as exc:
            log.error("the chat connection could not be read: %s", exc)  # noqa: TRY400
            raise _NotSent("send_failed", "The database did not answer: try again later.") from None
        if connections is None or stored is None:
            raise _NotSent("not_connected", "Connect a chat workspace first.")
        to_member = config.chat_action_type == "dm"
        target = (config.chat_user_id if to_member else config.chat_channel_id) or ""
        if not target.strip():
            raise _NotSent("missing_target", "Choose a person." if to_member else "Choose a channel.")
        text = chat_message(config.chat_message_text, variables_of(walk))
        if not text:
            raise _NotSent("empty_message", "The message is empty: write a text.")
        send = connections.send_to_member if to_member else connections.send_to_channel
        try:
            await send(stored, target.strip(), text, retry=config.chat_retry_on_failure)
        except (ChatRefused, StorageUnavailable) as exc:
            raise _NotSent("send_failed", str(exc)) from None


class _NotSent(Exception):
    """A message was not sent, for one of the reasons of §6.3."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
