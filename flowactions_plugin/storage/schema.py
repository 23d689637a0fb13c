"""The tables, as statements use them. Times are Unix milliseconds; ids are text; every name starts with ``flowactions_``.

Indexes and constraints are in the revisions (`storage.migrations`) only.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Float, Integer, LargeBinary, MetaData, String, Table, Text, text

metadata: Final = MetaData()

LIVE: Final = text("status IN ('pending', 'retrying')")
"""Rows that a worker may claim. With a partial index on them, the cost of a claim does not grow with the table."""

UNDELIVERED: Final = text("status <> 'delivered'")
"""Rows that wait, or have failed: few, so an index on them costs a delivery nothing when it ends as it should."""

NO_AGENT: Final = ""
"""The agent of a delivery that belongs to none: no id is empty."""


def _table(name: str, *columns: Column[Any]) -> Table:
    return Table(f"flowactions_{name}", metadata, *columns)


outbox: Final = _table(
    "outbox",
    Column("id", String(36), primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("agent_id", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("event_id", String(68), nullable=False),
    Column("event_type", String(64), nullable=False),
    Column("url", Text, nullable=False),
    Column("destination", Text, nullable=False),
    # What the organization has waiting for one endpoint: a hash of organization, destination and path (`queue.lanes.lane_of`).
    Column("lane", BigInteger, nullable=False),
    Column("method", String(32), nullable=False),
    Column("headers", Text, nullable=False),
    Column("body", LargeBinary),
    Column("idempotency_key", String(200)),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False),
    # Attempts before a replay that reset the counter. The numbers of the attempts log continue from them.
    Column("earlier_attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("next_attempt_at", BigInteger, nullable=False),
    # The token of the claim that holds the row.
    Column("claimed_by", String(32)),
    Column("takeovers", Integer, nullable=False),
    Column("last_status_code", Integer),
    Column("last_error", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    # Rounds in quarantine that began and did not finish. After three, the row is dead.
    Column("quarantine_rounds", Integer, nullable=False, server_default="0"),
    # The claim token of the last outcome, so that a repeated write finds its own.
    Column("settled_token", String(32)),
    # The time since which the row waits, without an attempt, for a cause on this side: a host method that fails, an
    # origin that no process here can read. NULL when it does not wait.
    Column("waiting_since", BigInteger),
    # The end of a claim's lease. Not indexed, so that on PostgreSQL a claim writes no index entry (decision 33).
    Column("claimed_until", BigInteger),
    # The attempt that has delivered the row, which is not in the attempts log: its number is the count of attempts, its
    # status code `last_status_code`.
    Column("delivered_started_at", BigInteger),
    Column("delivered_duration_ms", Integer),
    Column("delivered_response", LargeBinary),
    # What operators search by: where the row comes from, and the kind of its last failure. NULL: none.
    Column("flow_id", Text),
    Column("node_id", Text),
    Column("error_class", String(16)),
    # The W3C ``traceparent`` of what enqueued the row. NULL: it was not traced.
    Column("trace", String(55)),
    # The bulk action of an operator that changed the row last. NULL: none did.
    Column("action_id", String(36)),
    # How long each phase of the attempt took that has delivered the row, when it was slow, and what was noted of it: as in
    # the attempts log.
    Column("delivered_phases", Text),
    # What is sent one after another (decision 77), and the row's place in it: in the order of writing. NULL: it waits for no other row.
    Column("sequence", BigInteger),
    Column("position", BigInteger),
    # When a chat message is too old to be posted. NULL: it is none.
    Column("expires_at", BigInteger),
)
BEHIND_MS: Final = 253402300799999
"""9999-12-31T23:59:59.999Z: when the rows of a sequence are due that wait for the one before them."""

QUARANTINE_AFTER: Final = 3
"""Expired leases after which a row is sent in quarantine."""

QUARANTINED: Final = text(f"status IN ('pending', 'retrying') AND takeovers >= {QUARANTINE_AFTER}")
FAILED: Final = text("error_class IS NOT NULL")
"""Rows whose last attempt has failed."""
UNSENT: Final = text("error_class = 'not_sent' AND status = 'dead'")
"""Rows that ended without an attempt, and not by a person."""
KEYED: Final = text("idempotency_key IS NOT NULL")
FINISHED: Final = text("finished_at IS NOT NULL")

attempts: Final = _table(
    "attempts",
    Column("delivery_id", String(36), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("started_at", BigInteger, nullable=False),
    Column("duration_ms", Integer, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
    Column("response", LargeBinary),
    # How long each phase took: a JSON object, milliseconds. The names of notes (`egress.attempt.NOTES`) are among them,
    # with 0. NULL: not known.
    Column("phases", Text),
    # The last eight digits of the id of the worker that made it, with which its claims' tokens begin. NULL: not known.
    Column("worker", String(8)),
)

deferred: Final = _table(
    "deferred",
    # Ascending, in the order of the walk.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("organization_id", Text, nullable=False),
    Column("run_id", Text, nullable=False),
    # Empty text is the end of the flow, so that an index on equality can be used.
    Column("step_id", Text, nullable=False),
    Column("node_id", Text, nullable=False),
    Column("walk", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # Set when the user has reached the step: the process with this token runs the step's nodes.
    Column("token", String(32)),
    Column("held_until", BigInteger),
    Column("holds", Integer, nullable=False),
    Column("flow_id", Text, nullable=False),
    Column("visit", Text, nullable=False, server_default="1"),
    # The node's type, so that a process selects records that it can run.
    Column("node_type", Text, nullable=False),
    # When the node ran at this step, or was dropped. NULL: it waits.
    Column("ran_at", BigInteger),
)

halted_runs: Final = _table(
    "halted_runs",
    Column("organization_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("flow_id", Text, primary_key=True),
    Column("halted_at", BigInteger, nullable=False),
)

chat_connections: Final = _table(
    "chat_connections",
    Column("organization_id", Text, primary_key=True),
    Column("team_id", Text, nullable=False),
    Column("team_name", Text, nullable=False),
    Column("bot_user_id", Text, nullable=False),
    Column("app_id", Text, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("installed_by_id", Text, nullable=False),
    Column("installed_by_name", Text, nullable=False),
    Column("installed_at", BigInteger, nullable=False),
    Column("default_channel", Text),
    Column("status", String(16), nullable=False),
    Column("status_reason", Text),
    Column("sealed_token", LargeBinary, nullable=False),
    # New for each installation, so that a late decision about one does not change the next.
    Column("install_id", String(36), nullable=False),
    # Scopes that the provider reported as missing, separated by commas.
    Column("missing_scopes", Text, nullable=False, server_default=""),
    Column("last_error", Text),
    Column("last_error_at", BigInteger),
    Column("last_error_flow", Text),
    Column("last_error_node", Text),
    Column("revoked_at", BigInteger),
    # When the provider is asked again about the token that it has refused. NULL: never, the workspace itself has revoked it.
    Column("ask_at", BigInteger),
)

TROUBLED: Final = text("(status <> 'active' OR last_error_at IS NOT NULL)")
"""Connections that are revoked, or could not send at some time."""

oauth_states: Final = _table(
    "oauth_states",
    Column("id", String(64), primary_key=True),
    Column("expires_at", BigInteger, nullable=False),
    Column("organization_id", Text, nullable=False, server_default=""),
    Column("user_id", Text, nullable=False, server_default=""),
    Column("user_name", Text, nullable=False, server_default=""),
    # SHA-256 of the cookie that binds the install to one browser.
    Column("browser", String(64), nullable=False, server_default=""),
)

inbound_events: Final = _table(
    "inbound_events",
    Column("provider", String(32), primary_key=True),
    Column("event_id", Text, primary_key=True),
    Column("received_at", BigInteger, nullable=False),
    # Its type, as the provider names it.
    Column("event_type", Text),
    # How often it was received again, and acknowledged without being processed.
    Column("repeats", Integer, nullable=False, server_default="0"),
    # The last time that it was received again. NULL: it was not.
    Column("repeated_at", BigInteger),
)

inbound_requests: Final = _table(
    "inbound_requests",
    Column("provider", String(32), primary_key=True),
    Column("result", String(16), primary_key=True),
    # The same for all requests of one reason.
    Column("cause", Text, primary_key=True),
    Column("first_at", BigInteger, nullable=False),
    Column("last_at", BigInteger, nullable=False),
    Column("requests", BigInteger, nullable=False),
    # Of the last one: the event that it names, which anybody can have written when it was refused. NULL: none that can be read.
    Column("event_id", Text),
    # The type of that event, as the provider names it. NULL: the request was refused before it was read.
    Column("event_type", Text),
    Column("status_code", Integer, nullable=False),
    # Why it processed no event, for operators. NULL: it only had to be acknowledged.
    Column("reason", Text),
)

enqueue_keys: Final = _table(
    "enqueue_keys",
    Column("organization_id", Text, primary_key=True),
    # Who uses the key: ``host``, ``plugin:<name>``, ``api:<agent>`` for the logic-webhook endpoint, or ``resend:<delivery>``.
    Column("caller", Text, primary_key=True),
    Column("idempotency_key", String(200), primary_key=True),
    Column("delivery_id", String(36), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    # Of the delivery, which may be deleted before the key.
    Column("event_id", String(68), nullable=False),
)

enqueue_rates: Final = _table(
    "enqueue_rates",
    Column("organization_id", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    # The times of the counted calls, oldest first: a JSON array, never longer than the limit.
    Column("times", Text, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
)

workers: Final = _table(
    "workers",
    # New for each start of a process that delivers.
    Column("id", String(36), primary_key=True),
    Column("name", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("host_name", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("mode", String(16), nullable=False),
    Column("slots", Integer, nullable=False),
    # Seconds that its attempts may take.
    Column("delivery_timeout", Integer, nullable=False),
    Column("in_flight", Integer, nullable=False),
    # Of these, deliveries of slow lanes.
    Column("slow", Integer, nullable=False, server_default="0"),
    Column("started_at", BigInteger, nullable=False),
    Column("last_seen_at", BigInteger, nullable=False),
    # When a claim of its last returned a row. NULL: none did yet.
    Column("last_claim_at", BigInteger),
    Column("stopped_at", BigInteger),
    # Milliseconds by which its clock was ahead of the database's when it was last seen; less than 0: behind. NULL: not
    # known, or SQLite, which has no clock of its own.
    Column("clock_ahead_ms", BigInteger),
    # The destinations and organizations that it limits, or did when it was last seen, and since when: JSON. NULL: none.
    # Empty: an organization was purged, and the worker forgets what it limits.
    Column("limited", Text),
)

installation: Final = _table(
    "installation",
    # Random, made with the tables. The ids of alerts' events differ by it from those of other installations.
    Column("id", String(36), primary_key=True),
    # How many outages of writes have ended.
    Column("outages", BigInteger, nullable=False),
)

EVERY_ORGANIZATION: Final = ""
"""Instead of an organization, in what an operator of the host does for all of them: no id is empty."""

pauses: Final = _table(
    "pauses",
    Column("organization_id", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("paused_at", BigInteger, nullable=False),
    Column("paused_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
    # How who paused it acted: what operators and commands paused, operators end only. NULL: not known.
    Column("paused_role", String(16)),
    # Of an automatic pause: when the next probe is due. NULL: it is of a person.
    Column("probe_at", BigInteger),
    # How many probes were sent.
    Column("probes", Integer),
)

destinations: Final = _table(
    "destinations",
    Column("organization_id", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("last_success_at", BigInteger),
    Column("last_failure_at", BigInteger),
    # The first failure since the last success. NULL: the last attempt succeeded.
    Column("failing_since", BigInteger),
    Column("failures_in_row", Integer, nullable=False),
    # The kind of the last failure.
    Column("last_error", Text),
    # When the host was alerted that it fails. NULL: it was not alerted, or was alerted of the recovery.
    Column("alerted_at", BigInteger),
    Column("updated_at", BigInteger, nullable=False),
    # Why the last attempt that failed did, in words.
    Column("last_reason", Text),
    # The origin of the failures in a row, also after they have ended: JSON. Empty: they have several.
    Column("failing_origin", Text),
)
FAILING: Final = text("failing_since IS NOT NULL")

statistics: Final = _table(
    "statistics",
    # The start of an interval of five minutes.
    Column("bucket", BigInteger, primary_key=True),
    Column("organization_id", Text, primary_key=True),
    Column("destination", Text, primary_key=True),
    Column("delivered", Integer, nullable=False),
    # Attempts that failed.
    Column("failed", Integer, nullable=False),
    Column("dead", Integer, nullable=False),
    # Of all attempts: the time for which they held a slot.
    Column("duration_ms", BigInteger, nullable=False),
)

actions: Final = _table(
    "actions",
    # UUIDv7: in the order of time.
    Column("id", String(36), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("organization_id", Text, nullable=False),
    # The filter in words, and the set: rows that met it at this time, and how many they were.
    Column("filter", Text, nullable=False),
    Column("as_of", BigInteger, nullable=False),
    Column("counted", BigInteger, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("actor_name", Text, nullable=False),
    Column("actor_role", String(16), nullable=False),
    Column("reason", Text, nullable=False),
    Column("reset_attempts", Integer, nullable=False),
    # Rows per second. NULL: without limit.
    Column("rate", Float),
    Column("state", String(16), nullable=False),
    Column("state_reason", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    # The last row that was done: the others follow in the order of ids.
    Column("position", String(36)),
    Column("done", BigInteger, nullable=False),
    # Rows of a cancellation that workers had claimed, and how many attempts each had: JSON. NULL: there was none.
    Column("claimed", Text),
    # How many of these were being sent.
    Column("sent", BigInteger, nullable=False, server_default="0"),
    # When workers have given back what they had claimed of a cancellation and not begun.
    Column("withdrawn_at", BigInteger),
    # From when on, and from how many rows on, the rate counts.
    Column("paced_from", BigInteger),
    Column("paced_done", BigInteger, nullable=False),
    # The lease of the process that executes it.
    Column("held_by", String(32)),
    Column("held_until", BigInteger),
)
OPEN_ACTION: Final = text("finished_at IS NULL")
"""Actions that workers still have to do something for."""

audit: Final = _table(
    "audit",
    # UUIDv7: in the order of time.
    Column("id", String(36), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("organization_id", Text, nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("actor_name", Text, nullable=False),
    Column("actor_role", String(16), nullable=False),
    Column("action", String(32), nullable=False),
    Column("delivery_id", String(36)),
    Column("action_id", String(36)),
    Column("destination", Text),
    Column("filter", Text),
    Column("reason", Text, nullable=False),
    # How many rows it concerned.
    Column("number", BigInteger),
    # What it changed, as it was before: JSON.
    Column("before", Text),
)
AUDITED_ACTION: Final = text("action_id IS NOT NULL")
AUDITED_DELIVERY: Final = text("delivery_id IS NOT NULL")
