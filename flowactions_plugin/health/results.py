"""How deliveries stand: plain structs, which msgspec encodes as JSON. Times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec


class Counted(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A number of rows.

    Attributes:
        number: how many.
        exact: whether these are all; if not, the number is the least.
    """

    number: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.number:,}" if self.exact else f"{self.number:,}+"


class Bucket(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """What was done within an interval of five minutes, or several of them.

    Attributes:
        at: when it begins.
        delivered: deliveries that arrived.
        failed: attempts that failed.
        dead: deliveries that ended without success.
        duration_ms: how long all attempts took.
    """

    at: int
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    duration_ms: int = 0


class Worker(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A process that delivers.

    Attributes:
        id: of this start of the process.
        name: of the process, for people.
        version: of the plugin.
        host_name: the machine's.
        pid: the process's.
        mode: ``scheduled`` or ``continuous``.
        slots: attempts at once.
        in_flight: attempts that it was making when it was last seen.
        started_at: when it began.
        last_seen_at: when it last wrote this.
        last_claim_at: when it last claimed a row; ``None``: not yet.
        stopped_at: when it stopped; ``None``: it has not said so.
        clock_ahead_ms: milliseconds by which its clock was ahead of the database's when it was last seen; below 0: behind;
            ``None``: not known, or SQLite.
        state: ``alive``; ``stale``: it has not been seen for 45 s, and does not answer; ``stopped``.
    """

    id: str
    name: str
    version: str
    host_name: str
    pid: int
    mode: str
    slots: int
    in_flight: int
    started_at: int
    last_seen_at: int
    last_claim_at: int | None
    stopped_at: int | None
    clock_ahead_ms: int | None
    state: Literal["alive", "stale", "stopped"]


class DestinationState(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A destination of an organization, over the last hour.

    Attributes:
        destination: scheme, host and port.
        organization_id: whose; empty: it is the destination of alerts to operators.
        delivered: deliveries that arrived.
        failed: attempts that failed.
        dead: deliveries that ended without success.
        worker_ms: the time of workers that its attempts took.
        last_success_at: when something last arrived; ``None``: nothing has since this is recorded.
        failing_since: when the first of the failures in a row was; ``None``: it does not fail.
        failures_in_row: failures since the last success.
        last_error: the kind of the last failure.
        paused: whether it is paused, by the organization or for all.
        limited_since: since when a worker sends it one delivery at a time, because attempts time out; ``None``: none does.
    """

    destination: str
    organization_id: str
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    worker_ms: int = 0
    last_success_at: int | None = None
    failing_since: int | None = None
    failures_in_row: int = 0
    last_error: str | None = None
    paused: bool = False
    limited_since: int | None = None


class LimitedNow(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """What workers limit, so that receivers that hang do not hold all slots.

    Attributes:
        destinations: how many destinations get one delivery at a time, because attempts time out.
        since: the first time that one of these was limited; ``None``: none is.
        organizations: the organizations that wait because their share of a worker's slots is used up, and since when.
    """

    destinations: int = 0
    since: int | None = None
    organizations: Mapping[str, int] = {}


class PausedNow(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """What is paused, so that its deliveries wait.

    Attributes:
        destinations: how many pauses hold, each of one destination for an organization or for all.
        automatic: how many of them were set automatically.
        since: when the first of them began; ``None``: nothing is paused.
    """

    destinations: int = 0
    automatic: int = 0
    since: int | None = None

    def __str__(self) -> str:
        """Return how many are paused, in words that end before the time."""
        one = self.destinations == 1
        number = "1 destination is paused" if one else f"{self.destinations:,} destinations are paused"
        if self.automatic == self.destinations:
            number += " automatically"
        elif self.automatic:
            number += f" ({self.automatic:,} of them automatically)"
        return f"{number} since" if one else f"{number}, the first since"


class FailingOrigin(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """How many deliveries of a flow, or of one of its nodes, have failed.

    Attributes:
        organization_id: whose; empty: alerts to operators.
        flow_id: the flow; ``None``: no flow has queued them, but a logic action, the host, a plugin or an alert.
        node_id: the node; ``None``: of all nodes of the flow, or no node has queued them.
        dead: deliveries that ended without success within the last hour, those that a person cancelled apart.
        retrying: deliveries that have failed and are tried again.
    """

    organization_id: str
    flow_id: str | None
    node_id: str | None
    dead: int
    retrying: int

    @property
    def failed(self) -> int:
        """Both together."""
        return self.dead + self.retrying


class Failures(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Which flows and nodes the deliveries come from that have failed.

    Attributes:
        since: the start of the last hour.
        dead: deliveries that ended without success since then, those that a person cancelled apart.
        retrying: deliveries that have failed and are tried again; those of paused destinations are not counted.
        exact: whether these are all; if not, they are counted among the latest thousand of each.
        flows: the flows with the most of them.
        nodes: the nodes with the most of them.
    """

    since: int
    dead: int
    retrying: int
    exact: bool
    flows: Sequence[FailingOrigin]
    nodes: Sequence[FailingOrigin]

    @property
    def failed(self) -> int:
        """Both together."""
        return self.dead + self.retrying


class Verdict(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Whether deliveries go on.

    Attributes:
        state: ``ok``; ``idle``: nothing is due; ``unwritable``: the database takes no writes, so that nothing is queued
            either; ``stalled``: rows are due that nobody claims; ``no_worker``: no worker has been alive for a minute;
            ``failing``: most attempts of the last minutes have failed, and not of one organization alone.
        reason: in one sentence or two.
        waited_ms: for how long rows have been due that nobody claims; ``None`` otherwise.
        failing_organization: the organization whose attempts are most of the failures, where those of the others arrive;
            ``None`` otherwise.
        clock_ahead_ms: by how much the clock of a live worker is ahead of the database's, of the one that is farthest from it;
            below 0: behind; 0: not known, or SQLite.
    """

    state: Literal["ok", "idle", "unwritable", "stalled", "no_worker", "failing"]
    reason: str
    waited_ms: int | None = None
    failing_organization: str | None = None
    clock_ahead_ms: int = 0


class Blocked(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Deliveries that wait without an attempt, because something fails here: a method of the host, or the egress proxy.

    Attributes:
        reason: what fails.
        deliveries: how many, among the 2,500 that are due first.
        organizations: of how many organizations, among these.
        since: when the first of them began to wait; ``None``: not known.
    """

    reason: str
    deliveries: Counted
    organizations: int
    since: int | None


class Quarantined(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A delivery in quarantine, which may be what ends its workers.

    Attributes:
        id: the delivery's.
        organization_id: whose.
        destination: scheme, host and port.
        reclaims: how many workers ended, or did not answer, while they had claimed it.
    """

    id: str
    organization_id: str
    destination: str
    reclaims: int


class InboundFailing(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A provider of whose requests none was processed within the last hour, and some failed.

    Attributes:
        provider: ``auth`` or ``chat``.
        requests: how many were refused, invalid or failed, among the latest that are listed.
        result: of the latest of them.
        reason: why; ``None``: not known.
    """

    provider: str
    requests: int
    result: str
    reason: str | None


class Overview(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """How deliveries stand.

    Attributes:
        due: rows that may be claimed now, at least; those of paused destinations are not counted.
        due_exact: whether these are all.
        oldest_due_ms: for how long the oldest of them has been due, milliseconds; 0: none is.
        waiting: rows that are neither delivered nor dead.
        dead: rows that ended without success.
        hour: the last hour, in intervals of five minutes, the oldest first.
        day: the last day, in intervals of an hour, the oldest first.
        workers: processes that deliver; those of a day ago are gone.
        worst: destinations by failures within the last hour.
        slowest: destinations by time of workers within the last hour.
        failures: flows and nodes by deliveries that have failed.
        verdict: whether deliveries go on.
        alerts: the destination of alerts, if they do not arrive there. ``None``: they do, or this is about one organization.
        limited: what workers limit.
        paused: what is paused.
        blocked: deliveries that wait without an attempt, by their reason, the most first.
        quarantined: deliveries in quarantine, the oldest first.
        chat: chat connections that are revoked, or whose last message could not be sent within the last day.
        inbound: providers whose events are not processed. Empty for one organization: events belong to none.
    """

    due: int
    due_exact: bool
    oldest_due_ms: int
    waiting: Counted
    dead: Counted
    hour: Sequence[Bucket]
    day: Sequence[Bucket]
    workers: Sequence[Worker]
    worst: Sequence[DestinationState]
    slowest: Sequence[DestinationState]
    failures: Failures
    verdict: Verdict
    alerts: DestinationState | None = None
    limited: LimitedNow = LimitedNow()
    paused: PausedNow = PausedNow()
    blocked: Sequence[Blocked] = ()
    quarantined: Sequence[Quarantined] = ()
    chat: Counted = Counted(number=0, exact=True)
    inbound: Sequence[InboundFailing] = ()
