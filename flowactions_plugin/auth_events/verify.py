"""Svix-style signatures, and what an event of the auth provider says (§5.4)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, cast

from svix.webhooks import Webhook, WebhookVerificationError

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.http.events import EventInvalid, event_object

ID_HEADERS: Final = ("svix-id", "webhook-id")
TIMESTAMP_HEADERS: Final = ("svix-timestamp", "webhook-timestamp")
SIGNATURE_HEADERS: Final = ("svix-signature", "webhook-signature")

Kind = Literal["organization", "user", "session", "other"]
KINDS: Final = ("organization", "user", "session")

_ID = re.compile(r"[!-~]{1,200}", re.ASCII)
_TIMESTAMP = re.compile(r"[0-9]{1,12}", re.ASCII)


class NotAuthentic(FlowActionsError):
    """The auth provider has not signed this, or too long ago."""


class Told(NamedTuple):
    """What an authentic event says.

    Attributes:
        event_id: the provider's, the same when it is sent again.
        kind: what it is about.
        action: what happened to it.
        occurred_at: when.
        data: the provider's own fields.
    """

    event_id: str
    kind: Kind
    action: str
    occurred_at: datetime
    data: Mapping[str, Any]


class Verifier:
    """Verifies what the auth provider sends, with any of several secrets.

    Args:
        secrets: the newest first, as the provider shows them (``whsec_…``).
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self._webhooks = [Webhook(secret) for secret in secrets]

    def __repr__(self) -> str:
        return "Verifier(…)"

    def read(self, headers: Mapping[str, str], body: bytes) -> Told:
        """Verify a request and understand its event.

        Args:
            headers: of the request, names in lower case; those of Svix or of the standard that came of it.
            body: as it came.

        Raises:
            NotAuthentic: whatever the bytes, no secret fits, or it is more than five minutes off.
            EventInvalid: it is signed, but is no event.
        """
        event_id = _first(headers, ID_HEADERS)
        timestamp = _first(headers, TIMESTAMP_HEADERS)
        if _ID.fullmatch(event_id) is None or _TIMESTAMP.fullmatch(timestamp) is None:
            raise NotAuthentic
        signed = {
            "svix-id": event_id,
            "svix-timestamp": timestamp,
            "svix-signature": _first(headers, SIGNATURE_HEADERS),
        }
        if not any(_fits(webhook, signed, body) for webhook in self._webhooks):
            raise NotAuthentic
        return _told(event_id, int(timestamp), body)


def _first(headers: Mapping[str, str], names: Sequence[str]) -> str:
    return next((headers[name] for name in names if name in headers), "")


def _fits(webhook: Webhook, signed: dict[str, str], body: bytes) -> bool:
    try:
        webhook.verify(body, signed)
    except (json.JSONDecodeError, RecursionError):
        return True  # earlier releases read the body, too, once they have verified it
    except (WebhookVerificationError, ValueError, TypeError):
        # Of the latter two, the library lets some through: text that is not base64, bytes that are not UTF-8.
        return False
    return True


def _told(event_id: str, timestamp: int, body: bytes) -> Told:
    event = event_object(body)
    name, data = event.get("type"), event.get("data")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise EventInvalid("The event has no type.")
    if not isinstance(data, dict):
        raise EventInvalid("The event has no data.")
    subject, _, action = name.partition(".")
    kind = cast("Kind", subject) if subject in KINDS and action else "other"
    return Told(
        event_id=event_id,
        kind=kind,
        action=action if kind != "other" else name,
        occurred_at=datetime.fromtimestamp(timestamp, UTC),
        data=data,
    )
