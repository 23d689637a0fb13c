"""What is shown to operators and tenants: plain structs, which msgspec encodes as JSON. Times are Unix milliseconds, or ISO 8601 as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from flowactions_hookspecs import Header, Origin, UnsignedTestOrigin
from flowactions_plugin.operators.scope import Role

Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
"""Programs read larger ones differently (RFC 7493 §2.2)."""

Kind: TypeAlias = Literal["retry", "cancel", "delete", "resend"]
"""What is done: ``retry`` makes dead rows due, ``cancel`` ends rows that wait, ``delete`` removes dead rows, ``resend`` sends
delivered rows again, as new rows."""

Level: TypeAlias = Literal["failed", "warning", "note"]
"""How bad a finding is, the worst first. A note concerns nobody at night: it works as somebody wants it to."""

Worst: TypeAlias = Literal["failed", "warning", "ok"]

Certainty: TypeAlias = Literal["never connected", "sent, no answer", "answered", "answered through the proxy"]
"""Whether a receiver can have had a request: no byte of it left; it left, and nothing came back; it was answered; it was
answered, perhaps by the egress proxy."""


class Attempt(msgspec.Struct, rename="camel", kw_only=True):
    """One attempt of a delivery; of the answer's body the first 2 KiB are kept.

    ``phases`` says how many milliseconds each phase of an attempt took that failed, or was slow: ``resolve``, ``connect``,
    ``tls``, ``send`` and ``wait`` (for the answer). It is empty for others, and what an open connection spared is left out.

    ``note`` says if the request was sent twice in this attempt, if the answer's headers were not kept, if the request was not
    signed, and if the answer came through the egress proxy in clear. The proxy may have written such an answer, so ``response`` is empty then, except for
    operators.

    Attributes:
        certainty: whether the receiver can have received the request.
        worker: the name of the worker that made the attempt, or its mark if it ended more than a day ago; ``None``: not
            known, or not shown to an organization.
        remark: a note if the attempt's time is after the delivery's end, because a clock was ahead; ``None``: it is not.
    """

    number: int
    started_at: str | None
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str
    phases: dict[str, Milliseconds] = {}
    note: str | None = None
    certainty: Certainty = "sent, no answer"
    worker: str | None = None
    remark: str | None = None


class Delivery(msgspec.Struct, rename="camel", kw_only=True):
    """A delivery, without credentials, whatever its row holds.

    ``lastError`` says of an answer that is no success, too, that it was one.

    Attributes:
        agent_id: the agent; ``None``: it belongs to none.
        resent_from: the delivered row that somebody has sent again as this one; ``None``: nobody has.
        organization_id: the tenant; empty: it is an alert to operators.
        destination: scheme, host and port.
        error_class: the kind of its last failure; ``None``: no failure.
    """

    id: str
    status: str
    organization_id: str
    agent_id: str | None
    flow_id: str | None
    node_id: str | None
    idempotency_key: str | None
    event_id: str
    event_type: str
    destination: str
    url: str
    method: str
    attempts: int
    max_attempts: int
    next_attempt_at: str | None
    created_at: str | None
    updated_at: str | None
    finished_at: str | None
    last_status_code: int | None
    last_error: str | None
    error_class: str | None
    resent_from: str | None = None


class DeliveryDetail(Delivery, rename="camel", kw_only=True):
    """A delivery with what it sends, its attempts and its claim.

    Attributes:
        claimed_at: when a worker has claimed it; ``None``: no worker has claimed it.
        claimed_until: when that claim's lease ends.
        waiting_since: since when it waits for the host, without an attempt; ``None``: it does not wait.
        reclaims: number of its leases that have expired, because a worker ended or did not answer; 0 if it has
            ended.
        quarantine_rounds: number of quarantine rounds that began and did not finish; 0 if it has ended.
        trace: the W3C ``traceparent`` of the call that enqueued it; ``None``: it was not traced.
        action_id: the last bulk action that changed it; ``None``: no bulk action has.
        defect: which stored values cannot be read; not there if all can.
    """

    origin: Origin | None
    headers: list[Header]
    body: str | None
    attempt_log: list[Attempt]
    claimed_at: str | None
    claimed_until: str | None
    waiting_since: str | None
    reclaims: int | None
    quarantine_rounds: int | None
    trace: str | None
    action_id: str | None
    defect: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_unsigned_test(self) -> bool:
        """Return whether a test of a draft has enqueued it, so that no attempt is signed (§5.3.6)."""
        return isinstance(self.origin, UnsignedTestOrigin)


class Page(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Deliveries, newest first.

    Attributes:
        next_cursor: ``before`` of the next page; ``None``: this is the last page.
        looked_back_to: if no index serves the search, it has read only rows that were enqueued since this time,
            and the next page continues there; ``None``: it has read all rows.
    """

    rows: Sequence[Delivery]
    next_cursor: str | None = None
    looked_back_to: int | None = None


class Pause(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A paused destination.

    Attributes:
        organization_id: the organization whose deliveries are paused; empty: all organizations.
        destination: scheme, host and port.
        paused_by: who paused it; ``operator`` if the operator's name is not shown.
        paused_role: role of that person: ``dashboard``, ``operator`` or ``command``; ``automatic``: paused by a
            setting; ``None``: not known. Only operators can end a pause of ``operator``, ``command`` or an
            unknown role.
        reason: the reason, as it was typed.
        probe_at: for an automatic pause: when the next probe is sent, which is one delivery; else ``None``.
        probes: for an automatic pause: the number of probes that were sent.
    """

    organization_id: str
    destination: str
    paused_at: int
    paused_by: str
    paused_role: Role | None
    reason: str
    probe_at: int | None = None
    probes: int | None = None


class AuditEntry(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """An entry of the audit: who changed what, and why.

    Attributes:
        id: id of the entry; later entries have greater ids.
        organization_id: the organization of the changed rows; empty: all organizations.
        actor_role: role of the person: ``dashboard``, ``operator`` or ``command``; ``automatic``: changed by a setting.
        action: what was done.
        action_id: the bulk action that the change belongs to.
        number: of changed rows.
        filter: the filter that selected the deliveries, in words.
        before: JSON of the earlier state.
    """

    id: str
    at: int
    organization_id: str
    actor_id: str
    actor_name: str
    actor_role: Role
    action: str
    delivery_id: str | None
    action_id: str | None
    filter: str | None
    destination: str | None
    reason: str
    number: int | None
    before: str | None


class Action(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A bulk action in its present state. Times are Unix milliseconds.

    Attributes:
        id: id of the action; later actions have greater ids.
        organization_id: the organization of the rows; empty: all organizations.
        filter: the filter that selects the rows, in words.
        as_of: when the rows were counted.
        counted: number of rows at that time.
        reset_attempts: whether each row gets all its attempts again; if not, each gets one.
        rate: maximum number of rows per second; ``None``: no limit.
        state: ``waiting``: no row was changed yet; ``running``; ``done``; ``stopped``: a person has stopped it, and changed
            rows stay changed.
        state_reason: the reason why it has stopped.
        finished_at: when it ended; ``None``: workers still have to change rows.
        done: number of changed rows.
        sent: of a cancellation that is done: further rows that were being sent.
    """

    id: str
    kind: Kind
    organization_id: str
    filter: str
    as_of: int
    counted: int
    actor_id: str
    actor_name: str
    actor_role: Role
    reason: str
    reset_attempts: bool
    rate: float | None
    state: Literal["waiting", "running", "done", "stopped"]
    state_reason: str | None
    created_at: int
    finished_at: int | None
    done: int
    sent: int


class Resent(msgspec.Struct, rename="camel", frozen=True):
    """A delivery that was sent again from another one.

    Attributes:
        created_at: when it was made; ``None``: the stored value is not a time.
    """

    id: str
    status: str
    created_at: int | None


class Found(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """One delivery with all its details.

    Attributes:
        row: the delivery with its attempts, the oldest first.
        audit: the changes that people made to it, the latest first.
        pause: the pause of its destination; ``None``: it is not paused.
        action: the last bulk action that changed it; ``None``: no bulk action has.
        why: one sentence: why it is not sent yet, or how it ended.
        resent_as: the new deliveries that send it again, the newest first.
        before: the delivery that has to end first, as they are sent one after another; ``None``: none has.
    """

    row: DeliveryDetail
    audit: Sequence[AuditEntry]
    pause: Pause | None
    action: Action | None
    why: str
    resent_as: Sequence[Resent] = ()
    before: str | None = None


class Counted(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A number of rows.

    Attributes:
        exact: whether these are all; if not, the number is the least.
    """

    number: int
    exact: bool

    def __str__(self) -> str:
        return f"{self.number:,}" if self.exact else f"{self.number:,}+"


def counted_to(limit: int, number: int, *, exact: bool = True) -> Counted:
    """Return a number of rows, counted to one more than a limit; ``exact``: whether none was left out before."""
    return Counted(number=min(number, limit), exact=exact and number <= limit)


class Bucket(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Counts of an interval of five minutes, or of several of them.

    Attributes:
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
        mode: ``scheduled`` or ``continuous``.
        slots: maximum number of attempts at once.
        delivery_timeout: seconds that an attempt may take.
        in_flight: attempts in flight when it was last seen.
        slow: of these, those to slow receivers.
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
    delivery_timeout: int
    in_flight: int
    slow: int
    started_at: int
    last_seen_at: int
    last_claim_at: int | None
    stopped_at: int | None
    clock_ahead_ms: int | None
    state: Literal["alive", "stale", "stopped"]


class DestinationState(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A destination of an organization, over the last hour.

    Attributes:
        organization_id: the tenant; empty: it is the destination of alerts to operators.
        delivered: deliveries that arrived.
        failed: attempts that failed.
        dead: deliveries that ended without success.
        worker_ms: milliseconds that its attempts took together.
        last_success_at: when a delivery last arrived; ``None``: no delivery has arrived since this is recorded.
        last_failure_at: when an attempt last failed; ``None``: none has failed since this is recorded.
        failing_since: time of the first failure since the last success; ``None``: the last attempt succeeded.
        failures_in_row: failures since the last success.
        last_error: the kind of the last failure.
        last_reason: why it failed, in words.
        paused: whether it is paused, by the organization or for all.
        limited_since: since when a worker sends it one delivery at a time, because attempts time out; ``None``:
            it is not limited.
        waiting: deliveries that wait for an attempt, among the 10,000 that are due first.
        waiting_since: when the first of these was enqueued; ``None``: none waits.
    """

    destination: str
    organization_id: str
    delivered: int = 0
    failed: int = 0
    dead: int = 0
    worker_ms: int = 0
    last_success_at: int | None = None
    last_failure_at: int | None = None
    failing_since: int | None = None
    failures_in_row: int = 0
    last_error: str | None = None
    last_reason: str | None = None
    paused: bool = False
    limited_since: int | None = None
    waiting: Counted = Counted(number=0, exact=True)
    waiting_since: int | None = None


class FailingOrigin(msgspec.Struct, rename="camel", frozen=True):
    """A node, and how many of its deliveries have failed.

    Attributes:
        dead: deliveries that ended without success within the last hour, without those that a person cancelled.
        retrying: deliveries that have failed and are retried.
    """

    organization_id: str
    flow_id: str
    node_id: str
    dead: int
    retrying: int


class Failures(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Nodes of failed deliveries.

    Attributes:
        since: the start of the last hour.
        dead: deliveries that ended without success since then, without those that a person cancelled.
        retrying: deliveries that have failed and are retried, without those of paused destinations.
        exact: whether all are counted; if not, only the latest thousand of each kind are.
        nodes: those with the most failed deliveries.
    """

    since: int
    dead: int
    retrying: int
    exact: bool
    nodes: Sequence[FailingOrigin]


class Verdict(msgspec.Struct, rename="camel", frozen=True):
    """The verdict: whether deliveries work.

    Attributes:
        state: ``ok``. ``idle``: nothing is due. ``unwritable``: the database takes no writes, so nothing can be queued.
            ``stalled``: rows are due, and no worker claims them. ``no_worker``: no worker has been alive for a minute.
            ``failing``: most attempts of the last minutes have failed, in more than one organization.
        reason: the reason, in one sentence or two.
        level: ``failed``, ``warning`` or ``ok``.
    """

    state: Literal["ok", "idle", "unwritable", "stalled", "no_worker", "failing"]
    reason: str
    level: Worst = "ok"


class Finding(msgspec.Struct, rename="camel", frozen=True):
    """Something that somebody should look at, and what can be done about it.

    Attributes:
        level: ``failed``; ``warning``; ``note``.
        about: what it concerns, as `doctor` names its checks.
        words: what is found, with times as ISO 8601.
        advice: what to do; empty: nothing.
        where: the filter, in words, of the deliveries that it is about; empty: it is about no deliveries.
        page: another page that shows more, below the root of the pages.
        act: the action: ``retry`` these deliveries, or ``pause`` the destination; empty: none.
        destination: to pause.
        state: the verdict, if it is one on all deliveries.
    """

    level: Level
    about: str
    words: str
    advice: str = ""
    where: str = ""
    page: str = ""
    act: Literal["", "retry", "pause"] = ""
    destination: str = ""
    organization_id: str = ""
    state: Literal["", "unwritable", "stalled", "no_worker", "failing"] = ""


class Overview(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The overview of all deliveries.

    Attributes:
        due: number of rows that may be claimed now, without those of paused destinations.
        oldest_due_ms: milliseconds for which the oldest of them has been due; 0: nothing is due.
        waiting: rows that are neither delivered nor dead.
        dead: rows that ended without success.
        hour: the last hour, in intervals of five minutes, the oldest first.
        day: the last day, in intervals of an hour, the oldest first.
        workers: processes that deliver; those last seen more than a day ago are left out.
        failing: destinations that fail now, the latest failure first.
        failures: nodes, ordered by failed deliveries.
        verdict: whether deliveries work.
        findings: what somebody should look at, the worst first.
        level: the worst level of the findings: ``failed``, ``warning`` or ``ok``.
    """

    due: Counted
    oldest_due_ms: int
    waiting: Counted
    dead: Counted
    hour: Sequence[Bucket]
    day: Sequence[Bucket]
    workers: Sequence[Worker]
    failing: Sequence[DestinationState]
    failures: Failures
    verdict: Verdict
    findings: Sequence[Finding]
    level: Worst

    @property
    def state(self) -> str:
        """The verdict in a word for a first line: ``needs you`` where deliveries go on, and something is to be looked at."""
        goes_on = self.verdict.state in {"ok", "idle"}
        return "needs you" if goes_on and self.level != "ok" else self.verdict.state

    @property
    def first(self) -> Finding | None:
        """The finding that a first line tells; ``None``: deliveries go on, and there is none but notes."""
        told = [each for each in self.findings if each.state == self.verdict.state or self.state == "needs you"]
        return told[0] if told else None
