"""What alerts say: an event type and the fields of ``data`` for each kind. No body, no URL's path or query, no secret.

The guide docs/how-to/alerts.md shows an example of each.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from flowactions_hookspecs import Origin
from flowactions_plugin.operators.scope import Role


class Alert(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """The ``data`` of an alert.

    Attributes:
        TYPE: the event type.
        occurred_at: when it was noticed, ISO 8601 in UTC.
    """

    TYPE: ClassVar[str] = ""

    occurred_at: str


class OfDestination(Alert, kw_only=True, frozen=True):
    """An alert on an organization's destination; ``organization_id`` is ``None`` where it is of all organizations."""

    organization_id: str | None
    destination: str


class DestinationFailing(OfDestination, kw_only=True, frozen=True):
    """All attempts of an organization to a destination have failed, twenty times in a row or for an hour."""

    TYPE: ClassVar[str] = "flowactions.destination.failing"

    failing_since: str | None
    failures: int
    last_error: str | None


class DestinationRecovered(OfDestination, kw_only=True, frozen=True):
    """An attempt has succeeded since the alert that the destination fails."""

    TYPE: ClassVar[str] = "flowactions.destination.recovered"


class DestinationGone(OfDestination, kw_only=True, frozen=True):
    """A receiver has answered 410, which ended deliveries. Only with a retry schedule."""

    TYPE: ClassVar[str] = "flowactions.destination.gone"

    deliveries: int
    origin: Origin | None


class DestinationPaused(OfDestination, kw_only=True, frozen=True):
    """A destination was paused."""

    TYPE: ClassVar[str] = "flowactions.destination.paused"

    paused_by: Role


class DestinationResumed(OfDestination, kw_only=True, frozen=True):
    """A destination that was paused is resumed."""

    TYPE: ClassVar[str] = "flowactions.destination.resumed"

    resumed_by: Role


class DeadGroup(msgspec.Struct, kw_only=True, frozen=True, rename="camel"):
    """Deliveries that ended without success, of one organization to one destination, for one kind of reason."""

    organization_id: str
    destination: str
    error: str | None
    deliveries: int


class DeliveriesDead(Alert, kw_only=True, frozen=True):
    """Deliveries have ended without success within a window.

    Attributes:
        since: the start of the window.
        until: its end.
        deliveries: how many, at least.
        exact: whether these are all.
        groups: the largest groups of them.
    """

    TYPE: ClassVar[str] = "flowactions.deliveries.dead"

    since: str
    until: str
    deliveries: int
    exact: bool
    groups: list[DeadGroup]


class DatabaseUnwritable(Alert, kw_only=True, frozen=True):
    """The database takes no writes. The only alert that is not in the outbox."""

    TYPE: ClassVar[str] = "flowactions.database.unwritable"

    since: str
    reason: str


class DatabaseWritable(Alert, kw_only=True, frozen=True):
    """The database takes writes again."""

    TYPE: ClassVar[str] = "flowactions.database.writable"

    since: str
    until: str
    reason: str


KINDS: Final[tuple[type[Alert], ...]] = (
    DestinationFailing,
    DestinationRecovered,
    DestinationGone,
    DestinationPaused,
    DestinationResumed,
    DeliveriesDead,
    DatabaseUnwritable,
    DatabaseWritable,
)
"""All kinds, in the order of the guide."""


def body_of(alert: Alert) -> bytes:
    """Return the body of an alert: the envelope as JSON, as that of logic actions."""
    return msgspec.json.encode({"type": alert.TYPE, "version": 1, "data": alert})
