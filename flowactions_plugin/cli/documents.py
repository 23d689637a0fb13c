"""The JSON of commands (``--json``) that no other module describes; the reference page lists these fields."""

from __future__ import annotations

import msgspec

from flowactions_plugin.insights.results import DestinationState, Pause
from flowactions_plugin.operations.purge import Purged


class Document(msgspec.Struct, kw_only=True, rename="camel"):
    """A result."""


class Tables(Document):
    """The revision of the tables.

    Attributes:
        revision: revision of the tables now; `null`: no tables exist.
        before: revision before the command.
        wanted: revision of this release.
    """

    revision: str | None
    before: str | None
    wanted: str


class Tokens(Document):
    """The stored chat tokens.

    Attributes:
        changed: number of tokens encrypted with an older key; unless `dry`, they are encrypted again.
        current: number of tokens that the newest key had already encrypted.
        unreadable: organizations whose token no key can decrypt.
        dry: whether `--check` was given.
    """

    changed: int
    current: int
    unreadable: list[str]
    dry: bool


class Destinations(Document):
    """Destinations with the results of the last hour, and pauses.

    Attributes:
        data: the destinations.
        pauses: the pauses, up to the same limit.
        more: whether further destinations exist.
        more_pauses: whether further pauses exist.
    """

    data: list[DestinationState]
    pauses: list[Pause]
    more: bool
    more_pauses: bool


class Paused(Document):
    """A destination that was paused or resumed.

    Attributes:
        destination: scheme, host and port.
        organization: the organization; `null`: all organizations.
        changed: whether the command changed anything.
    """

    destination: str
    organization: str | None
    changed: bool


class Purge(Document):
    """The rows of an organization: counted or deleted.

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
