"""The chat provider's lifecycle events: verified and parsed."""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from flowactions_plugin.chat.store import Revocation
from flowactions_plugin.errors import RequestInvalid
from flowactions_plugin.http.strict import parse_object
from flowactions_plugin.inbound.requests import PLAIN_ID, TIMESTAMP, NotAuthentic, check_signed

VERSION: Final = "v0"

REASONS: Final[Mapping[str, str]] = {"app_uninstalled": "app_uninstalled", "tokens_revoked": "token_revoked"}
"""The events that revoke connections, and the reason that such a connection shows (§6.2)."""

CHALLENGE: Final = "url_verification"
"""The request with which the provider verifies a URL."""


class Challenge(msgspec.Struct, frozen=True):
    """The provider verifies that this URL receives its events."""

    challenge: str


class Acknowledged(msgspec.Struct, frozen=True):
    """A request that is acknowledged and has no effect.

    Attributes:
        event_id: the provider's id; ``None``: it has none that can be one.
        event_type: the provider's name of its type; ``None``: it has none.
    """

    event_id: str | None
    event_type: str | None


def check_signature(
    secrets: Sequence[str], timestamp: str | None, signature: str | None, body: bytes, now: float
) -> None:
    """Check that the provider signed a request, scheme v0, with one of the secrets (§5.4). ``now`` is in Unix seconds.

    Raises:
        NotAuthentic: no secret fits, or the timestamp is more than five minutes off. No input raises another error.
    """
    if timestamp is None or signature is None:
        raise NotAuthentic("headers", "X-Slack-Request-Timestamp or X-Slack-Signature is missing")
    if TIMESTAMP.fullmatch(timestamp) is None:
        raise NotAuthentic("timestamp form", "X-Slack-Request-Timestamp is not Unix seconds")
    signed = f"{VERSION}:{timestamp}:".encode() + body
    given = signature.encode("utf-8", "replace")
    fits = any(
        hmac.compare_digest(
            f"{VERSION}={hmac.new(each.encode(), signed, 'sha256').hexdigest()}".encode(), given
        )
        for each in secrets
    )
    check_signed(
        fits, now - int(timestamp), "the signature does not fit CHAT_SIGNING_SECRET: is it this app's?"
    )


def read_event(body: bytes, now: float) -> Challenge | Revocation | Acknowledged:
    """Parse an authentic request (§6.2). An event without a time has happened ``now``, in Unix seconds.

    Raises:
        RequestInvalid: it is not a valid event.
    """
    # A text of an event that is not ours may be cut within a surrogate pair; what is used here is ASCII.
    parsed = parse_object(body, strictly=False)
    if parsed.get("type") == CHALLENGE:
        return Challenge(_text_field(parsed, "challenge", re.compile(r"[ -~]{1,500}", re.ASCII)))
    event = parsed.get("event")
    if parsed.get("type") != "event_callback" or not isinstance(event, dict):
        return _acknowledged(parsed, parsed.get("type"))
    kind = event.get("type")
    # An install for a whole enterprise has no team. Such installs are not supported.
    if not isinstance(kind, str) or kind not in REASONS or parsed.get("team_id") is None:
        return _acknowledged(parsed, kind)
    at = parsed.get("event_time")
    return Revocation(
        event_id=_text_field(parsed, "event_id", PLAIN_ID),
        team_id=_text_field(parsed, "team_id", PLAIN_ID),
        app_id=_text_field(parsed, "api_app_id", PLAIN_ID) if parsed.get("api_app_id") else "",
        bot_users=_bots(event) if kind == "tokens_revoked" else None,
        at=at if isinstance(at, int) else int(now),
        event_type=kind,
        reason=REASONS[kind],
    )


def _acknowledged(parsed: Mapping[str, Any], kind: object) -> Acknowledged:
    event_id = parsed.get("event_id")
    return Acknowledged(
        event_id=event_id if isinstance(event_id, str) and PLAIN_ID.fullmatch(event_id) else None,
        event_type=kind if isinstance(kind, str) else None,
    )


def _bots(event: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of the bot users whose tokens were revoked."""
    tokens = event.get("tokens")
    bots = tokens.get("bot") if isinstance(tokens, Mapping) else None
    return frozenset(bot for bot in bots if isinstance(bot, str)) if isinstance(bots, list) else frozenset()


def _text_field(parsed: Mapping[str, Any], field: str, form: re.Pattern[str]) -> str:
    value = parsed.get(field)
    if not isinstance(value, str) or form.fullmatch(value) is None:
        raise RequestInvalid(f"The event's {field} is missing or cannot be used.")
    return value
