"""What commands on the database write with ``--json``, beside what `operate` returns; the reference page lists these fields.

Times that are integers are Unix milliseconds.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flowactions_plugin.bulk.purge import Purged
from flowactions_plugin.bulk.results import Action, Preview
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


class Key(Document):
    """A new key.

    Attributes:
        kind: what it is for.
        key: the key; it is nowhere else.
    """

    kind: Literal["encryption", "signing"]
    key: str


class Changed(Document):
    """A single delivery.

    Attributes:
        id: the delivery's.
        changed: whether it was in a state in which this can be done.
    """

    id: str
    changed: bool


class Outcome(Document):
    """What a command on many deliveries came to.

    Attributes:
        preview: the deliveries that the filter has selected; `null` with `--follow` and for single deliveries.
        action: the bulk action as it stands; `null` with `--dry-run`, when nothing is selected, and for single deliveries.
        deliveries: single deliveries, and whether each was changed; empty for a filter.
    """

    preview: Preview | None = None
    action: Action | None = None
    deliveries: list[Changed] = msgspec.field(default_factory=list)


class ActionList(Document):
    """Bulk actions.

    Attributes:
        data: the latest first.
    """

    data: list[Action]


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


class Purge(Document):
    """What is kept of an organization, or was.

    Attributes:
        organization: its id.
        dry: whether it was counted only.
        counts: how many of each kind.
        token_revoked: whether the token of a chat connection could be revoked at the provider; `null` without a connection, or
            when it was counted only.
    """

    organization: str
    dry: bool
    counts: Purged
    token_revoked: bool | None = None
