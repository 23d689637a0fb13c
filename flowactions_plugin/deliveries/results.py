"""What is shown of deliveries: plain structs, which msgspec encodes as JSON. Times are Unix milliseconds, or ISO 8601."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from flowactions_hookspecs import Header, Origin, UnsignedTestOrigin
from flowactions_plugin.operators.scope import Role

SAFE_INTEGER: Final = 2**53
"""Programs read larger ones differently (RFC 7493 §2.2)."""

Milliseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=SAFE_INTEGER)]

Certainty: TypeAlias = Literal["never connected", "sent, no answer", "answered", "answered through the proxy"]
"""Whether a receiver can have had a request: no byte of it left; it left, and nothing came back; it was answered; it was
answered, perhaps by the egress proxy."""


class DeliverySummary(msgspec.Struct, rename="camel", kw_only=True):
    """A row of the outbox. Its times are ``null``, and its counts 0, when what is stored is none; ``defect`` says so.

    ``agentId`` is ``null`` for a webhook that belongs to no agent. ``lastError`` says of an answer that is no success, too, that it
    was one. ``resentFrom`` is the id of the delivered row that somebody has sent again as this one; ``null`` for all others.
    """

    id: str
    status: str
    idempotency_key: str | None
    event_id: str
    event_type: str
    agent_id: str | None
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
    resent_from: str | None = None
    defect: str | msgspec.UnsetType = msgspec.UNSET


class Attempt(msgspec.Struct, rename="camel", kw_only=True):
    """One attempt of a delivery; of the answer's body the first 2 KiB are kept.

    ``phases`` says how many milliseconds each phase of an attempt took that failed, or was slow: ``resolve``, ``connect``,
    ``tls``, ``send`` and ``wait`` (for the answer). It is empty for others, and what an open connection spared is left out.

    ``note`` says if the request was sent twice in this attempt, if the answer's headers were not kept, if the request was not
    signed, and if the answer came through the egress proxy in clear. The proxy may have written such an answer, so ``response`` is empty then, except for
    operators.
    """

    number: int
    started_at: str | None
    duration_ms: int
    status_code: int | None
    error: str | None
    response: str
    phases: dict[str, Milliseconds] = {}
    note: str | None = None


class DeliveryDetail(DeliverySummary, rename="camel", kw_only=True):
    """A row of the outbox with what it sends and its attempts."""

    origin: Origin | None
    headers: list[Header]
    body: str | None
    attempt_log: list[Attempt]

    @property
    def is_unsigned_test(self) -> bool:
        """Return whether a test of a draft has enqueued it, so that no attempt is signed (§5.3.6)."""
        return isinstance(self.origin, UnsignedTestOrigin)


class DeliveryRow(DeliverySummary, rename="camel", kw_only=True):
    """A row of the outbox in a list for operators: without credentials, whatever it holds.

    Attributes:
        organization_id: the tenant; empty: it is an alert to operators.
        destination: scheme, host and port.
        flow_id: the flow that enqueued it, if known.
        node_id: the node that enqueued it, if known.
        error_class: the kind of its last failure; ``None``: no failure.
    """

    organization_id: str
    destination: str
    flow_id: str | None
    node_id: str | None
    error_class: str | None


class Page(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """Deliveries, newest first.

    Attributes:
        rows: the deliveries.
        next_cursor: ``before`` of the next page; ``None``: this is the last page.
        looked_back_to: if no index serves the search, it has read only rows that were enqueued since this time,
            and the next page continues there; ``None``: it has read all rows.
    """

    rows: Sequence[DeliveryRow]
    next_cursor: str | None = None
    looked_back_to: int | None = None


class KnownAttempt(Attempt, rename="camel", kw_only=True):
    """An attempt, with further facts for operators.

    Attributes:
        certainty: whether the receiver can have received the request.
        worker: the name of the worker that made the attempt, or its mark if it ended more than a day ago; ``None``: not
            known, or not shown to an organization.
        remark: a note if the attempt's time is after the delivery's end, because a clock was ahead; ``None``: it is not.
    """

    certainty: Certainty
    worker: str | None = None
    remark: str | None = None


class DeliveryFacts(DeliveryDetail, rename="camel", kw_only=True):
    """A delivery as it is stored, for operators: what it sends, without credentials, and its attempts.

    Attributes:
        organization_id: the tenant.
        destination: scheme, host and port.
        flow_id: the flow that enqueued it, if known.
        node_id: the node that enqueued it, if known.
        error_class: the kind of its last failure; ``None``: no failure.
        due_at: when its next attempt is due; ``None``: it has ended.
        claimed_at: when a worker has claimed it; ``None``: no worker has claimed it.
        claimed_until: when that claim's lease ends.
        waiting_since: since when it waits for the host, without an attempt; ``None``: it does not wait.
        reclaims: number of its leases that have expired, because a worker ended or did not answer; 0 if it has
            ended.
        quarantine_rounds: number of quarantine rounds that began and did not finish; 0 if it has ended.
        trace: the W3C ``traceparent`` of the call that enqueued it; ``None``: it was not traced.
        action_id: the last bulk action that changed it; ``None``: no bulk action has.
    """

    organization_id: str
    destination: str
    flow_id: str | None
    node_id: str | None
    error_class: str | None
    due_at: int | None
    claimed_at: int | None
    claimed_until: int | None
    waiting_since: int | None
    reclaims: int | None
    quarantine_rounds: int | None
    trace: str | None
    action_id: str | None


class Pause(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A paused destination.

    Attributes:
        organization_id: the organization whose deliveries are paused; empty: all organizations.
        destination: scheme, host and port.
        paused_at: when it was paused.
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
        at: time of the change.
        organization_id: the organization of the changed rows; empty: all organizations.
        actor_id: id of the person.
        actor_name: name of the person.
        actor_role: role of the person: ``dashboard``, ``operator`` or ``command``; ``automatic``: changed by a setting.
        action: what was done.
        delivery_id: the delivery that was changed, if it was one.
        action_id: the bulk action that the change belongs to.
        filter: JSON of the `Filter` that selected the deliveries.
        destination: the destination that was changed.
        reason: the reason that the person gave.
        number: number of changed rows.
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


class ActionState(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A bulk action, as a delivery shows it.

    Attributes:
        id: the action's id.
        kind: ``retry``, ``cancel``, ``delete`` or ``resend``.
        state: ``waiting``, ``running``, ``done`` or ``stopped``.
        actor_id: id of the person who began it.
        actor_name: name of that person.
        actor_role: role of that person.
        reason: the reason that the person gave.
        created_at: when it was begun.
    """

    id: str
    kind: str
    state: str
    actor_id: str
    actor_name: str
    actor_role: Role
    reason: str
    created_at: int


class Resent(msgspec.Struct, rename="camel", frozen=True):
    """A delivery that was sent again from another one.

    Attributes:
        id: id of the new delivery.
        status: its state.
        created_at: when it was made; ``None``: the stored value is not a time.
    """

    id: str
    status: str
    created_at: int | None


class Found(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """One delivery with all its details.

    Attributes:
        row: the delivery as it is stored.
        attempts: its attempts, the oldest first.
        audit: the changes that people made to it, the latest first.
        pause: the pause of its destination; ``None``: it is not paused.
        action: the last bulk action that changed it; ``None``: no bulk action has.
        why: one sentence: why it is not sent yet, or how it ended.
        resent_as: the new deliveries that send it again, the newest first.
    """

    row: DeliveryFacts
    attempts: Sequence[KnownAttempt]
    audit: Sequence[AuditEntry]
    pause: Pause | None
    action: ActionState | None
    why: str
    resent_as: Sequence[Resent] = ()


class ChatConnection(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """A chat connection, without its token.

    Attributes:
        organization_id: the tenant.
        team_id: id of the workspace.
        team_name: name of the workspace.
        installed_by_id: id of the person who connected it.
        installed_by_name: name of that person.
        installed_at: when it was connected.
        default_channel: the channel of test messages; ``None``: not set.
        status: ``active``, ``revoked``, or ``unusable``: the process that shows it cannot decrypt the token.
        status_reason: why it is not active.
        ask_at: when the provider is asked again about the token that it has refused; ``None``: never.
        missing_scopes: scopes that the provider reported as missing, separated by commas.
        last_error: the code of the last message that could not be sent since the install; ``None``: no message
            failed.
        last_error_at: when that message failed.
        last_error_flow: the message's flow; ``None``: it was a test message.
        last_error_node: its node.
    """

    organization_id: str
    team_id: str
    team_name: str
    installed_by_id: str
    installed_by_name: str
    installed_at: int
    default_channel: str | None
    status: str
    status_reason: str | None
    ask_at: int | None
    missing_scopes: str
    last_error: str | None
    last_error_at: int | None
    last_error_flow: str | None
    last_error_node: str | None


class InboundEvent(msgspec.Struct, kw_only=True, frozen=True):
    """An inbound event that was processed.

    Attributes:
        received_at: when.
        provider: who sent it: `auth` or `chat`.
        event_id: the provider's id of it.
        event_type: the provider's name of its type; `None`: it is not known.
        repeats: how often it was received again, and acknowledged without being processed.
        repeated_at: when it was last received again; `None`: it was not.
    """

    received_at: int
    provider: str
    event_id: str
    event_type: str | None
    repeats: int
    repeated_at: int | None


class InboundReason(msgspec.Struct, kw_only=True, frozen=True):
    """Why requests of a provider processed no event.

    Attributes:
        provider: `auth` or `chat`.
        result: `acknowledged`, `refused`, `invalid` or `failed`.
        reason: why; `None`: they only had to be acknowledged.
        requests: how many.
        first_at: when the first was answered.
        last_at: when the last was answered.
        status_code: the HTTP status of its answer.
        event_id: the provider's id of its event; `None`: it names none. In a refused request, anybody may have written it.
        event_type: the provider's name of its type; `None`: it is not known.
    """

    provider: str
    result: str
    reason: str | None
    requests: int
    first_at: int
    last_at: int
    status_code: int
    event_id: str | None
    event_type: str | None


class InboundPage(msgspec.Struct, kw_only=True):
    """A page of inbound events.

    Attributes:
        rows: the events, the latest first.
        reasons: why requests processed none, that of the latest request first.
        next_cursor: gives the next page; `None`: this is the last one.
    """

    rows: Sequence[InboundEvent] = ()
    reasons: Sequence[InboundReason] = ()
    next_cursor: str | None = None
