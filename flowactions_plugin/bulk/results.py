"""What is shown of bulk actions: plain structs, which msgspec encodes as JSON. Times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from flowactions_plugin.bulk.sets import Kind
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.health.results import Counted
from flowactions_plugin.operators.scope import Role

State: TypeAlias = Literal["waiting", "running", "done", "stopped"]


class Share(msgspec.Struct, rename="camel", frozen=True):
    """How many rows of a set belong to a destination or to an organization."""

    name: str
    number: int


class Preview(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The set of rows that an action would be done to.

    Attributes:
        kind: what would be done.
        filter: the filter.
        count: the exact number of rows.
        as_of: the time at which they were counted, Unix milliseconds.
        token: names kind, filter and set to `Actions.begin`; text of URL-safe characters.
        destinations: the destinations with the most rows.
        organizations: the organizations with the most rows.
        seconds_to_drain: about how long workers take to send them, by the rate and by what they delivered within the last
            day; ``None``: neither is known, or nothing is sent.
        delivered: of a retry: how many delivered rows meet the filter too, and are left out; ``None`` for other
            actions.
    """

    kind: Kind
    filter: Filter
    count: int
    as_of: int
    token: str
    destinations: Sequence[Share]
    organizations: Sequence[Share]
    seconds_to_drain: float | None
    delivered: Counted | None = None


class Action(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A bulk action in its present state. Times are Unix milliseconds.

    Attributes:
        id: id of the action; later actions have greater ids.
        kind: the kind of change.
        organization_id: the organization of the rows; empty: all organizations.
        filter: the filter that selects the rows.
        as_of: when the rows were counted.
        counted: number of rows at that time.
        actor_id: id of the person who began it.
        actor_name: name of that person.
        actor_role: role of that person.
        reason: the reason that the person gave.
        reset_attempts: whether each row gets all its attempts again; if not, each gets one.
        rate: maximum number of rows per second; ``None``: no limit.
        canary: number of rows that are tried first; 0: no canary.
        state: ``waiting``: no row was changed yet; ``running``; ``done``; ``stopped``: a person or its canary has stopped it,
            and changed rows stay changed.
        state_reason: the reason why it waits, or why it has stopped.
        created_at: when it was ordered.
        starts_at: when it begins; stopped before, it changes no row.
        finished_at: when it ended; ``None``: workers still have to change rows.
        done: number of changed rows.
    """

    id: str
    kind: Kind
    organization_id: str
    filter: Filter
    as_of: int
    counted: int
    actor_id: str
    actor_name: str
    actor_role: Role
    reason: str
    reset_attempts: bool
    rate: float | None
    canary: int
    state: State
    state_reason: str | None
    created_at: int
    starts_at: int
    finished_at: int | None
    done: int
