"""Messages that wait in the outbox (``FLOWACTIONS_CHAT_DELIVERY=queued``): how one is written there, and how a worker posts it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import quote, unquote

import msgspec

from flowactions_plugin.chat.calls import SEND_SECONDS, seconds_from_now
from flowactions_plugin.chat.failures import REVOKED, TRANSIENT, ChatRefused, advice
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.store import StoredConnection
from flowactions_plugin.clock import Clock
from flowactions_plugin.egress.attempt import (
    CHAT_LIMITED,
    CHAT_REFUSED,
    CHAT_UNREACHABLE,
    Aborted,
    Message,
    Outcome,
)
from flowactions_plugin.errors import NotConfigured, StorageUnavailable

NOT_CONNECTED: Final = "not_connected: the chat workspace was disconnected"
"""Why a message is dead whose workspace is not the organization's any more."""

LONGEST_DELAY: Final = 24 * 3600.0
"""Seconds: the longest wait, also if the provider asks for more."""

PAUSES: Final = (5.0, 60.0)
"""Seconds to the next look at a revoked connection: at first, and after some minutes."""

STALL_SECONDS: Final = 1.0
"""A call that ended so long after its time did so because this process stood still."""

_TARGET = re.compile(r"[!-~]{1,255}", re.ASCII)


class Text(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of a row: the finished text, and whether it goes to a member."""

    text: str
    to_member: bool = False


class Waiting(Message, Protocol):
    """A message that a worker has claimed: its URL is one of `url_of`, its body a `Text` as JSON."""

    @property
    def organization_id(self) -> str:
        """Whose it is."""

    @property
    def origin(self) -> object:
        """Has the flow and the node."""

    @property
    def left_ms(self) -> int | None:
        """For how long it may still be posted."""


def url_of(team_id: str, target: str) -> str | None:
    """Return the URL of a row: of the workspace and a channel or member in it; ``None``: no channel and no member has such an id."""
    return f"chat://{_quoted(team_id)}/{_quoted(target)}" if _TARGET.fullmatch(target) else None


def is_to_member(body: bytes | None) -> bool:
    """Return whether the message of a row goes to a member."""
    try:
        return msgspec.json.decode(body or b"", type=Text).to_member
    except msgspec.DecodeError:
        return False


GONE: Final = Aborted("chat", NOT_CONNECTED, ends=True)


def _unusable(chat: Chat, stored: StoredConnection, waiting: Waiting) -> Aborted | None:
    """Return why a connection cannot be used for a message now; ``None``: it can."""
    if (code := chat.connections.reason(stored)) is None:
        return None
    reason = f"{code}: {advice(code)}"
    if stored.status == "active":  # the keys of this process do not open its token
        return Aborted("chat", reason, waits=True)
    return Aborted("chat", reason, delay=pause_after(waiting))


def pause_after(waiting: Waiting) -> float:
    """Return the seconds to the next look at a revoked connection: more, the longer its message has waited."""
    waited = LONGEST_DELAY - (waiting.left_ms or 0) / 1000
    return min(max(waited / 4, PAUSES[0]), PAUSES[1])


def _quoted(text: str) -> str:
    return quote(text, safe="")


class QueuedSender:
    """Posts messages that a worker has claimed, one attempt each (§8).

    Args:
        chat: what chat needs, or the error that says which setting is missing: then messages wait.
        clock: Unix seconds.
        timer: monotonic seconds.
    """

    def __init__(
        self, chat: Chat | NotConfigured, clock: Clock, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._chat = chat
        self._clock = clock
        self._timer = timer

    async def send(self, waiting: Waiting) -> Outcome | Aborted:
        """Make one attempt. It is none if the connection cannot be used, or the channel is at its limit: the message waits then."""
        chat, until = self._chat, seconds_from_now(SEND_SECONDS)
        started_at, began = int(self._clock() * 1000), self._timer()
        if isinstance(chat, NotConfigured):
            return Aborted("chat", "chat is not set up in this process", waits=True, detail=str(chat))
        target = waiting.url.rpartition("/")[2]
        try:
            stored = await chat.messenger.connection_of(waiting.organization_id, until)
        except StorageUnavailable as exc:
            return Aborted("chat", "the chat connection could not be read", waits=True, detail=str(exc))
        if stored is None or not waiting.url.startswith(f"chat://{_quoted(stored.team_id)}/"):
            return GONE
        if (unusable := _unusable(chat, stored, waiting)) is not None:
            return unusable
        message = msgspec.json.decode(waiting.body or b"", type=Text)
        place = getattr(waiting.origin, "flow_id", ""), getattr(waiting.origin, "node_id", "")
        try:
            await chat.messenger.send(
                stored,
                unquote(target),
                message.text,
                to_member=message.to_member,
                until=until,
                origin=place,
                waits=True,
            )
        except ChatRefused as refusal:
            return self._refused(waiting, refusal, started_at, self._timer() - began)
        return Outcome(started_at, int((self._timer() - began) * 1000), arrived=True)

    def _refused(
        self, waiting: Waiting, refusal: ChatRefused, started_at: int, seconds: float
    ) -> Outcome | Aborted:
        """Return what a refusal means for the message."""
        code = refusal.code
        reason = f"{code}: {refusal}"
        if refusal.throttled:
            delay = min(max(1.0, refusal.retry_after or 0.0), LONGEST_DELAY)
            return Aborted("chat", reason, delay=delay, failure=CHAT_LIMITED)
        if code in REVOKED:
            return Aborted("chat", reason, delay=pause_after(waiting))
        if code in TRANSIENT and seconds >= SEND_SECONDS + STALL_SECONDS:
            return Aborted("stall", "this process stood still meanwhile")
        return Outcome(
            started_at,
            int(seconds * 1000),
            error=reason,
            arrived=False,
            failure=CHAT_UNREACHABLE if code in TRANSIENT else CHAT_REFUSED,
            final=not refusal.transient,
            of_one=refusal.of_one,
        )
