"""What commands write with ``--json``, where nothing else describes it; the reference page lists these fields."""

from __future__ import annotations

from typing import Literal

import msgspec

from flowactions_plugin.deliveries.results import Pause
from flowactions_plugin.health.results import DestinationState, Worker


class Document(msgspec.Struct, kw_only=True, rename="camel"):
    """A result."""


class Tables(Document):
    """The revision of the tables.

    Attributes:
        revision: that they have now; `null` without tables.
        before: that they had before the command.
        wanted: this release's.
    """

    revision: str | None
    before: str | None
    wanted: str


class Tokens(Document):
    """The stored chat tokens.

    Attributes:
        changed: how many were sealed with an older key; unless `dry`, they are resealed.
        current: how many were sealed with the newest key before.
        unreadable: organizations whose token no key opens.
        dry: whether `--check` was given.
    """

    changed: int
    current: int
    unreadable: list[str]
    dry: bool


class QueuedAlert(Document):
    """A test alert that was queued.

    Attributes:
        id: of its row: `flowactions outbox show` shows what became of it.
        event_type: of the alert.
        destination: where it is sent to: scheme, host and port.
    """

    id: str
    event_type: str
    destination: str


class Key(Document):
    """A new key.

    Attributes:
        kind: what it is for.
        key: the key; it is nowhere else.
    """

    kind: Literal["encryption", "signing"]
    key: str


class Destinations(Document):
    """Destinations with what came of the last hour, and those that are paused.

    Attributes:
        data: the destinations.
        pauses: what is paused, up to the same limit.
        more: whether there are further destinations.
        more_pauses: whether more is paused.
    """

    data: list[DestinationState]
    pauses: list[Pause]
    more: bool
    more_pauses: bool


class Paused(Document):
    """A destination that was paused or resumed.

    Attributes:
        destination: scheme, host and port.
        organization: for whom; `null`: for all organizations.
        changed: whether that changed anything.
    """

    destination: str
    organization: str | None
    changed: bool


class Workers(Document):
    """The processes that deliver.

    Attributes:
        data: the workers; those that have been silent for a day are gone.
    """

    data: list[Worker]
