"""How deliveries stand: plain structs, which msgspec encodes as JSON. Times are Unix milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from flowactions_plugin.log_text import plural


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
    """Counts of an interval of five minutes, or of several of them.

    Attributes:
        at: start of the interval.
        delivered: deliveries that arrived.
        failed: attempts that failed.
        dead: deliveries that ended without success.
        duration_ms: milliseconds that all attempts took together.
    """

    at: int
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    duration_ms: int = 0


class Worker(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A process that delivers.

    Attributes:
        id: id of the process, new for each start.
        name: name of the process, for people.
        version: version of the plugin.
        host_name: name of the machine.
        pid: id of the process on its machine.
        mode: ``scheduled`` or ``continuous``.
        slots: maximum number of attempts at once.
        in_flight: attempts in flight when it was last seen.
        started_at: when it started.
        last_seen_at: when it last wrote its row.
        last_claim_at: when it last claimed a row; ``None``: not yet.
        stopped_at: when it stopped in order; ``None``: it runs, does not answer, or was killed.
        clock_ahead_ms: milliseconds by which its clock was ahead of the database's when it was last seen; below
            0: behind; ``None``: not known, or SQLite.
        state: ``alive``; ``stale``: it does not answer, and was last seen more than 45 s ago; ``stopped``.
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
        organization_id: the tenant; empty: it is the destination of alerts to operators.
        delivered: deliveries that arrived.
        failed: attempts that failed.
        dead: deliveries that ended without success.
        worker_ms: milliseconds that its attempts took together.
        last_success_at: when a delivery last arrived; ``None``: no delivery has arrived since this is recorded.
        failing_since: time of the first failure since the last success; ``None``: the last attempt succeeded.
        failures_in_row: failures since the last success.
        last_error: the kind of the last failure.
        last_reason: why it failed, in words.
        paused: whether it is paused, by the organization or for all.
        limited_since: since when a worker sends it one delivery at a time, because attempts time out; ``None``:
            it is not limited.
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
    last_reason: str | None = None
    paused: bool = False
    limited_since: int | None = None


class LimitedNow(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Limits that workers apply, so that receivers that hang do not use all slots.

    Attributes:
        destinations: number of destinations that get one delivery at a time, because attempts time out.
        since: when the first of these was limited; ``None``: no destination is limited.
    """

    destinations: int = 0
    since: int | None = None


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
        number = plural(self.destinations, "destination is paused", "destinations are paused")
        if self.automatic == self.destinations:
            number += " automatically"
        elif self.automatic:
            number += f" ({self.automatic:,} of them automatically)"
        return f"{number} since" if one else f"{number}, the first since"


class FailingOrigin(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Number of failed deliveries of a flow, or of one of its nodes.

    Attributes:
        organization_id: the tenant; empty: alerts to operators.
        flow_id: the flow; ``None``: a logic action, the host, a plugin or an alert has queued them.
        node_id: the node; ``None``: all nodes of the flow, or no node has queued them.
        dead: deliveries that ended without success within the last hour, without those that a person cancelled.
        retrying: deliveries that have failed and are retried.
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
    """Flows and nodes of failed deliveries.

    Attributes:
        since: the start of the last hour.
        dead: deliveries that ended without success since then, without those that a person cancelled.
        retrying: deliveries that have failed and are retried, without those of paused destinations.
        exact: whether all are counted; if not, only the latest thousand of each kind are.
        flows: the flows with the most failed deliveries.
        nodes: the nodes with the most failed deliveries.
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
    """The verdict: whether deliveries work.

    Attributes:
        state: ``ok``. ``idle``: nothing is due. ``unwritable``: the database takes no writes, so nothing can be queued.
            ``stalled``: rows are due, and no worker claims them. ``no_worker``: no worker has been alive for a minute.
            ``failing``: most attempts of the last minutes have failed, in more than one organization.
        reason: the reason, in one sentence or two.
        waited_ms: milliseconds for which rows have been due that no worker claims; ``None`` otherwise.
        failing_organization: the organization with most of the failures, if the attempts of the others succeed; ``None``
            otherwise.
        clock_ahead_ms: milliseconds by which a live worker's clock is ahead of the database's, for the clock that differs most;
            negative: behind; 0: not known, or SQLite.
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
    """A delivery in quarantine, because it may crash its workers.

    Attributes:
        id: the delivery's id.
        organization_id: the tenant.
        destination: scheme, host and port.
        reclaims: number of workers that ended, or did not answer, while they had claimed it.
    """

    id: str
    organization_id: str
    destination: str
    reclaims: int


class InboundFailing(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A provider of whose requests none was processed within the last hour, and some failed.

    Attributes:
        provider: ``auth`` or ``chat``.
        requests: how many were refused, invalid or failed for the latest reason.
        since: when the first of these was.
        result: of these.
        reason: why; ``None``: not known.
    """

    provider: str
    requests: int
    since: int
    result: str
    reason: str | None


class Overview(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The overview of all deliveries.

    Attributes:
        due: number of rows that may be claimed now, without those of paused destinations.
        due_exact: whether ``due`` is exact; if not, it is a minimum.
        oldest_due_ms: milliseconds for which the oldest of them has been due; 0: nothing is due.
        waiting: rows that are neither delivered nor dead.
        dead: rows that ended without success.
        hour: the last hour, in intervals of five minutes, the oldest first.
        day: the last day, in intervals of an hour, the oldest first.
        workers: processes that deliver; those last seen more than a day ago are left out.
        worst: destinations, ordered by failures within the last hour.
        slowest: destinations, ordered by time of workers within the last hour.
        failures: flows and nodes, ordered by failed deliveries.
        verdict: whether deliveries work.
        alerts: the destination of alerts, if alerts do not arrive there. ``None``: they arrive, or the overview
            is of one organization.
        limited: limits that workers apply.
        paused: paused destinations.
        blocked: deliveries that wait without an attempt, by reason, ordered by their number.
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
