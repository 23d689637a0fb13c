"""The chat-message node: its config, what is wrong with it, and posting when a walk reaches it."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from flowactions_hookspecs import (
    ChatNodeOrigin,
    ConfigProblem,
    InTransaction,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    OutboundWebhook,
    Preview,
    Walk,
    config_schema,
)
from flowactions_plugin.chat import queued
from flowactions_plugin.chat.app import CHANNELS_PATH, MEMBERS_PATH
from flowactions_plugin.chat.calls import SEND_SECONDS, seconds_from_now
from flowactions_plugin.chat.directory import NOT_CHECKED
from flowactions_plugin.chat.failures import (
    FOR_OPERATORS,
    REVOKED,
    UNEXPECTED,
    ChatRefused,
    advice,
    advice_for_operators,
    code_with_detail,
)
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.errors import NotConfigured, StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes import faults, template
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.origins import CHAT, kind_of
from flowactions_plugin.queue.claimed import Completion
from flowactions_plugin.queue.enqueue import Outbox, is_test
from flowactions_plugin.queue.prepared import PreparedDelivery
from flowactions_plugin.queue.rules import FINISHED, NewDelivery
from flowactions_plugin.storage.database import Transaction
from flowactions_plugin.storage.outages import answer_to
from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.telemetry import Telemetry

log = logging.getLogger("flowactions")

NAME: Final = "chat_message"
EVENT_TYPE: Final = "experience.flow_node.chat_message"
ATTEMPTS_WITH_RETRY: Final = 4

NOT_CONNECTED: Final = "Connect a chat workspace first."
NOT_SET_UP: Final = "Chat is not set up in this service. Ask the people who operate it."
MESSAGE_CUT: Final = f"The message is cut at {template.CHAT_MESSAGE_LENGTH} characters."

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
        bool, Meta(title="Try again when sending fails", description="Up to 4 attempts within a few seconds.")
    ] = False
    chat_continue_on_failure: Annotated[
        bool,
        Meta(
            title="Continue when the message cannot be sent",
            description="Off: the flow stops here when sending fails.",
        ),
    ] = True

    @property
    def to_member(self) -> bool:
        """Whether the message goes to a member; otherwise it goes to a channel."""
        return self.chat_action_type == "dm"

    @property
    def target(self) -> str:
        """The id of the member or channel; empty when it is missing."""
        return ((self.chat_user_id if self.to_member else self.chat_channel_id) or "").strip()

    @property
    def target_field(self) -> str:
        """The field that holds it."""
        return "chatUserId" if self.to_member else "chatChannelId"


UI_SCHEMA: Final[dict[str, Any]] = {
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


QUEUED: Final = {
    "chatRetryOnFailure": "Off: one attempt. On: up to 4 attempts, 5 to 8 seconds apart.",
    "chatContinueOnFailure": "Off: the flow stops here when the message cannot be queued.",
}
"""What fields mean where messages are queued."""


def _schema(*, is_queued: bool) -> dict[str, Any]:
    """Give the config's schema: the choice of target decides which target field is there."""
    schema = config_schema(ChatMessageConfig)
    properties = schema["properties"]
    for name, said in QUEUED.items() if is_queued else ():
        properties[name]["description"] = said
    choice = properties["chatActionType"]
    del choice["enum"]
    choice["type"] = "string"
    choice["oneOf"] = [
        {"const": "channel", "title": "A channel"},
        {"const": "dm", "title": "A person (direct message)"},
    ]
    branches = [
        {"properties": {"chatActionType": {"const": action}, field: properties.pop(field)}, "required": [field]}
        for action, field in (("channel", "chatChannelId"), ("dm", "chatUserId"))
    ]
    return {**schema, "dependencies": {"chatActionType": {"oneOf": branches}}}


def node_type(node: ChatMessageNode) -> NodeType:
    """Describe the node type to the flow editor, with the routes of its fields' pickers, and whether chat can be used here."""
    return NodeType(
        name=NAME,
        title="Chat message",
        description="Post a message to a channel or a person in your chat workspace.",
        category="Integrations",
        icon=ICON,
        config_schema=_schema(is_queued=node.is_queued),
        ui_schema=UI_SCHEMA,
        pickers={"chatChannelId": CHANNELS_PATH, "chatUserId": MEMBERS_PATH},
        template_variables=template.VARIABLES,
        available=node.is_available,
        unavailable_reason=None if node.is_available else NOT_SET_UP,
        reach=node.reach,
        check=node.check,
        preview=node.preview,
    )


class _NotSent(NamedTuple):
    """Why a message was not sent: a reason of §6.3, what a person does, and for the log what is more precise than these."""

    reason: str
    advice: str
    code: str = ""
    for_operators: str = ""


class ChatMessageNode:
    """The chat-message node: what it does when a walk reaches it (§3.2), and what an editor shows of it.

    Fail-open: the walk goes on unless the config says otherwise.

    Args:
        chat: what chat needs, or the error that says which setting is missing.
        telemetry: counts messages; ``None``: nothing does.
        outbox: takes in messages that are queued; ``None``: the node posts them.
    """

    def __init__(
        self, chat: Chat | NotConfigured, telemetry: Telemetry | None = None, outbox: Outbox | None = None
    ) -> None:
        self._chat = chat
        self.is_available = isinstance(chat, Chat)
        self._meters = (telemetry or Telemetry()).meters
        self._outbox = outbox
        self.is_queued = outbox is not None

    async def reach(self, walk: Walk, node: Node) -> NodeResult | InTransaction:
        """Send the message (§7.1), or return what queues it. A sent one cannot be rolled back, so a deferred one is sent at least once."""
        config, _ = read_config(ChatMessageConfig, node.config)
        try:
            done = await self._send(walk, node, config, seconds_from_now(SEND_SECONDS))
        except Exception as exc:  # noqa: BLE001  whatever it is, it is a message that was not sent (§7.1)
            # Without the message and the traceback, which may hold what was sent.
            done = _NotSent("send_failed", advice(UNEXPECTED), f"{type(exc).__name__}{_place(exc)}")
        if isinstance(done, QueuedMessage):
            return InTransaction(done.write)
        if done is not None:
            return self._failed(walk, node, config, done)
        log_sent(node.id)
        self._count("sent", to_member=config.to_member)
        return NodeResult(node_id=node.id, status="sent", message=_note(walk, config))

    def _failed(self, walk: Walk, node: Node, config: ChatMessageConfig, failure: _NotSent) -> NodeResult:
        """Log and count a message that was not sent, and give the node's result."""
        log_not_sent(node.id, walk.organization_id, failure)
        self._count(failure.reason, to_member=config.to_member)
        halts = not config.chat_continue_on_failure
        return NodeResult(
            node_id=node.id, status="failed", reason=failure.reason, message=failure.advice, halt=halts
        )

    def _count(self, result: str, *, to_member: bool) -> None:
        self._meters.count(names.CHAT_SENDS, target="member" if to_member else "channel", result=result)

    def ended(self, completions: Sequence[Completion]) -> None:
        """Log and count queued messages that were posted or given up (§6.3)."""
        for each in completions:
            delivery = each.delivery
            if kind_of(delivery.destination) == CHAT and each.status in FINISHED:
                error = None if each.status == "delivered" else each.reason or ""
                node_id = getattr(delivery.origin, "node_id", "")
                self.message_ended(node_id, delivery.organization_id, delivery.body, error)

    def message_ended(self, node_id: str, organization_id: str, body: bytes | None, error: str | None) -> None:
        """Log and count the end of a queued message; the error is ``None`` if it was posted."""
        if error is None:
            log_sent(node_id)
        else:
            code, _, said = error.partition(": ")
            reason = "not_connected" if code == "not_connected" else "send_failed"
            failure = _NotSent(reason, said or error, code if said else "", FOR_OPERATORS.get(code, ""))
            log_not_sent(node_id, organization_id, failure)
        result = "sent" if error is None else reason
        self._count(result, to_member=queued.is_to_member(body))

    def _queued(
        self, outbox: Outbox, walk: Walk, node: Node, config: ChatMessageConfig, team_id: str, text: str
    ) -> _NotSent | QueuedMessage:
        """Make the delivery of a message."""
        if (url := queued.url_of(team_id, config.target)) is None:
            code = "user_not_found" if config.to_member else "channel_not_found"
            return _NotSent("send_failed", advice(code), code)
        entity = msgspec.json.encode((walk.organization_id, walk.flow_id, walk.run_id, node.id, walk.visit))
        delivery = outbox.new_message(
            OutboundWebhook(
                organization_id=walk.organization_id,
                agent_id=walk.agent_id,
                origin=ChatNodeOrigin(
                    organization_id=walk.organization_id,
                    agent_id=walk.agent_id,
                    flow_id=walk.flow_id,
                    node_id=node.id,
                ),
                event_type=EVENT_TYPE,
                entity=entity.decode(),
                url=url,
                body=msgspec.json.encode(queued.Text(text, config.to_member)),
                max_attempts=ATTEMPTS_WITH_RETRY if config.chat_retry_on_failure else 1,
                order_key=config.target,
            )
        )

        def failed(exc: StorageUnavailable) -> NodeResult:
            outbox.count_refusal(exc)
            return self._failed(walk, node, config, _NotSent("send_failed", answer_to(exc), str(exc)))

        return QueuedMessage(outbox, delivery, _note(walk, config), failed)

    async def _send(
        self, walk: Walk, node: Node, config: ChatMessageConfig, until: float
    ) -> _NotSent | QueuedMessage | None:
        """Send a message, until a moment of the event loop's clock, the database included; or make what queues it."""
        messenger = self._chat.messenger if isinstance(self._chat, Chat) else None
        try:
            stored = None if messenger is None else await messenger.connection_of(walk.organization_id, until)
        except StorageUnavailable as exc:
            log.error(  # noqa: TRY400
                "the chat connection could not be read: %s", exc, extra={"event": "chat.connection_unreadable"}
            )
            said = "The database did not answer: try again later."
            return _NotSent("send_failed", said, "storage_unavailable")
        if messenger is None or stored is None:
            return _NotSent("not_connected", NOT_CONNECTED)
        text = template.chat_message(config.chat_message_text, template.variables_of(walk))
        for error in refusals(config, text):
            return _NotSent(error.code, error.message)
        if self._outbox is not None and not is_test():
            return self._queued(self._outbox, walk, node, config, stored.team_id, text)
        try:
            await messenger.send(
                stored,
                config.target,
                text,
                to_member=config.to_member,
                retry=config.chat_retry_on_failure,
                until=until,
                origin=(walk.flow_id, node.id),
            )
        except ChatRefused as refusal:
            code, more = code_with_detail(refusal), advice_for_operators(refusal.code)
            return _NotSent("send_failed", str(refusal), code, more)
        return None

    async def check(
        self, draft: NodeDraft, variables: template.Variables = faults.SAMPLE
    ) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config and the connection; the provider is asked only when the draft says so."""
        problem = await self._of_connection(draft)
        found = problems(draft.node.config, variables)
        return found if problem is None else faults.bounded([problem, *found])

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return the message that would be posted; nothing is sent or written."""
        config, _ = read_config(ChatMessageConfig, draft.node.config)
        variables = template.variables_of(walk)
        found = await self.check(draft, variables)
        text = template.without_surrogates(template.chat_message(config.chat_message_text, variables))
        return Preview(
            target=template.without_surrogates(config.target) or None, text=text or None, problems=found
        )

    async def _of_connection(self, draft: NodeDraft) -> ConfigProblem | None:
        """Return what is wrong with the connection, or with the target as the provider knows it."""
        chat, until = self._chat, seconds_from_now(SEND_SECONDS)
        if not isinstance(chat, Chat):
            return ConfigProblem(code="not_connected", message=NOT_SET_UP)
        try:
            stored = await chat.messenger.connection_of(draft.organization_id, until)
        except StorageUnavailable as exc:
            log.warning(
                "the chat connection could not be read: %s", exc, extra={"event": "draft.chat_not_checked"}
            )
            return faults.warning(
                NOT_CHECKED, "The database did not answer, so the chat connection was not checked."
            )
        if stored is None:
            return ConfigProblem(code="not_connected", message=NOT_CONNECTED)
        unusable = chat.connections.reason(stored)
        if unusable is not None:
            return ConfigProblem(code=unusable, message=advice(unusable))
        config, _ = read_config(ChatMessageConfig, draft.node.config)
        if not (draft.ask_provider and config.target):
            return None
        wrong = await chat.directory.target_problem(
            stored, config.target, to_member=config.to_member, until=until
        )
        # A token that no longer works is no fault of the target.
        return wrong if wrong is None or wrong.code in REVOKED else replace(wrong, path=(config.target_field,))


def refusals(config: ChatMessageConfig, text: str) -> Iterator[ConfigProblem]:
    """Tell why a config cannot be sent with this text; the code is the reason of the node's result."""
    if not config.target:
        message = "Choose a person." if config.to_member else "Choose a channel."
        yield ConfigProblem(path=(config.target_field,), code="missing_target", message=message)
    if not text:
        message = "The message is empty: write a text."
        yield ConfigProblem(path=("chatMessageText",), code="empty_message", message=message)


def problems(
    stored: Mapping[str, Any], variables: template.Variables = faults.SAMPLE
) -> Sequence[ConfigProblem]:
    """Return what is wrong with a config, except what only the provider knows (§2.1)."""
    config, unusable = read_config(ChatMessageConfig, stored)
    target, text = config.target, config.chat_message_text
    found = [
        *faults.wrong_types(unusable - {"chatActionType"}),
        *refusals(config, template.chat_message(text, variables)),
    ]
    if "chatActionType" in unusable:
        message = "Only dm and channel are known: it is sent to the channel."
        found.append(faults.warning("unknown_action_type", message, "chatActionType"))
    if target:
        found += faults.at(config.target_field, faults.wrong_id(target, to_member=config.to_member))
        found += faults.at(config.target_field, faults.tokens_not_substituted(target))
    if template.is_chat_message_cut(text, variables):
        found.append(faults.warning("text_cut", MESSAGE_CUT, "chatMessageText"))
    found += faults.at("chatMessageText", faults.unknown_tokens(text))
    return faults.bounded(found)


class QueuedMessage(PreparedDelivery):
    """A message that is written to the outbox.

    Args:
        outbox: takes it in.
        delivery: what is written.
        note: for the flow's author; ``None``: none.
        failed: gives the node's result when it could not be written.
    """

    def __init__(
        self,
        outbox: Outbox,
        delivery: NewDelivery,
        note: str | None,
        failed: Callable[[StorageUnavailable], NodeResult],
    ) -> None:
        super().__init__(outbox, delivery)
        self._note = note
        self._failed = failed

    async def write(self, transaction: Transaction | None) -> NodeResult:
        """Write the message, as `PreparedDelivery.write` does."""
        return replace(await super().write(transaction), message=self._note)

    def not_written(self, exc: StorageUnavailable) -> NodeResult:
        """Return that it was not sent (§7.1)."""
        return self._failed(exc)


def _note(walk: Walk, config: ChatMessageConfig) -> str | None:
    is_cut = template.is_chat_message_cut(config.chat_message_text, template.variables_of(walk))
    return MESSAGE_CUT if is_cut else None


def log_sent(node_id: str) -> None:
    """Log that a message was posted, in the words of §6.3."""
    log.info("chat_message node %s sent", printable(node_id), extra={"event": "chat_message.sent"})


def log_not_sent(node_id: str, organization_id: str, failure: _NotSent) -> None:
    """Log a message that was not sent: the exact line of §6.3, and what helps to mend it in a line of its own."""
    reason, said, code, for_operators = failure
    shown, whose = printable(node_id), printable(organization_id)
    log.warning("chat_message node %s not sent: %s", shown, reason, extra={"event": "chat_message.not_sent"})
    log.warning(
        "chat_message node %s of organization %s: %s: %s",
        shown,
        whose,
        code or reason,
        for_operators or said,
        extra={"event": "chat_message.not_sent_because"},
    )


def _place(exc: Exception) -> str:
    """Say where an exception was raised, without anything of what was at work there."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
