"""Rows of all kinds that the operator pages show, as few or as many as one asks for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import Table, insert, text

from flowactions_plugin.clock import new_id
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.queue.claims import token_prefix
from flowactions_plugin.queue.lanes import lane_of
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.database import Database
from tests.plugin.stored import a_connection, a_worker

DESTINATIONS = (
    "https://hooks.acme.example:443",
    "https://api.globex.example:443",
    "https://events.initech.example:443",
    "http://127.0.0.1:9",
)
ORGANIZATIONS = ("acme", "globex")
EVENTS = ("order.placed", "flow.completed", "invoice.paid")
PEOPLE = (
    ("olive", "Olive", "operator"),
    ("ada", "Ada", "dashboard"),
    ("ada", "Ada", "dashboard"),
    ("root", "deploy", "command"),
)
REASONS = (
    "the receiver is up again",
    "their certificate is broken",
    "",
    "asked for by the customer, ticket 4711",
)
DAY_MS = 86_400_000
INTERVAL_MS = 300_000
SPACING_MS = 600
"""Between the enqueues of two deliveries: 100,000 are sixteen hours."""

ATTEMPTS = 4
BATCH = 2000


class Failure(NamedTuple):
    """How an attempt failed."""

    kind: str
    status_code: int | None
    error: str | None
    response: bytes | None
    duration_ms: int
    phases: str | None


FAILURES = (
    Failure("http_5xx", 503, None, b"<h1>Service unavailable</h1>", 40, None),
    Failure(
        "timeout",
        None,
        "timed out after 10 s while waiting for the answer",
        None,
        10_004,
        '{"resolve": 2, "connect": 9, "tls": 31, "wait": 9962}',
    ),
    Failure("network", None, "could not connect: connection refused", None, 3, '{"resolve": 1, "connect": 2}'),
    Failure("http_4xx", 404, None, b'{"error": "no such hook"}', 25, None),
)
NO_SECRET = "Host.signing_secret of Shop raised TimeoutError"
"""What one delivery waits for."""

UNPROCESSED = (
    ("failed", 500, "Host.auth_event failed: LookupError; the log has the details"),
    ("refused", 401, "the signature does not fit the one secret of AUTH_WEBHOOK_SIGNING_SECRET"),
    ("invalid", 400, "The event has no data."),
    ("acknowledged", 200, ""),
)
"""Inbound requests that processed no event: result, status, reason."""


async def fill(database: Database, count: int) -> list[str]:
    """Write so many deliveries, and of all other tables of the pages as many rows as such a host has.

    Args:
        database: has the tables, all empty.
        count: of deliveries; 0 writes nothing.

    Returns:
        The ids of the deliveries, the newest first. The first waits for its second attempt.
    """
    if not count:
        return []
    now, many = int(time.time() * 1000), count >= 10_000
    places = [*DESTINATIONS, *(f"https://d{number}.example.com:443" for number in range(196 if many else 0))]
    workers = list(_workers(now, 3 if count > 1 else 1))
    made = list(_deliveries(now, count, places[:count], token_prefix(workers[0]["id"])))
    rows: Sequence[tuple[Table, Iterable[dict[str, Any]]]] = (
        (schema.workers, workers),
        (schema.outbox, (row for row, _ in made)),
        (schema.attempts, (each for _, log in made for each in log)),
        (schema.statistics, _statistics(now, places[:count])),
        (schema.destinations, _destinations(now, places[:count])),
        (schema.pauses, _pauses(now)),
        (schema.inbound_events, _inbound_events(now, count)),
        (schema.inbound_requests, _inbound_requests(now, min(count, 5))),
        (schema.actions, _actions(now, 6 if count > 1 else 1, 600 if many else 0)),
        (schema.audit, _audit(now, count, [row["id"] for row, _ in made[:2]])),
        (schema.chat_connections, _connections(now, count // 100 if many else min(count, 3))),
    )
    async with database.write() as connection:
        for table, each in rows:
            given = list(each)
            for start in range(0, len(given), BATCH):
                await connection.execute(insert(table), given[start : start + BATCH])
    async with database.write() as connection:
        await connection.execute(text("ANALYZE"))
    return [row["id"] for row, _ in made]


def _deliveries(
    now: int, count: int, places: Sequence[str], worker: str
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Give each delivery with its attempts log, the newest first."""
    for number in range(count):
        at = now - 60_000 - number * SPACING_MS
        failed = FAILURES[number // 2 % len(FAILURES)]
        status, attempts = _state(number)
        row_id = new_id(at / 1000)
        organization, place = ORGANIZATIONS[number % 2], places[(number + number // 20) % len(places)]
        flow, node = EVENTS[number % 3].replace(".", "-"), "notify-backend"
        delivered = status == "delivered"
        logged = range(1, attempts + (not delivered))
        log = [
            {
                "delivery_id": row_id,
                "number": each,
                "started_at": at + 200 + (2**each - 2) * 2500,
                "duration_ms": failed.duration_ms,
                "status_code": failed.status_code,
                "error": failed.error,
                "response": failed.response,
                "phases": failed.phases,
                "worker": worker,
            }
            for each in logged
        ]
        last = None if delivered or not attempts else failed
        ended = at + 250 + (2**attempts - 2) * 2500
        yield (
            {
                "id": row_id,
                "organization_id": organization,
                "agent_id": f"{organization}-support",
                "origin": json.dumps(
                    {
                        "kind": "flow_node",
                        "organizationId": organization,
                        "agentId": f"{organization}-support",
                        "flowId": flow,
                        "nodeId": node,
                        **({"resentFrom": new_id(at / 1000 - 60)} if number == 2 else {}),
                    }
                ),
                "flow_id": flow,
                "node_id": node,
                "event_id": f"evt_{sha256(str(number).encode()).hexdigest()}",
                "event_type": EVENTS[number % 3],
                "url": f"{place}/hooks?token=secret",
                "destination": place,
                "lane": lane_of(organization, place, f"{place}/hooks"),
                "method": "POST",
                "headers": '[["content-type","application/json"],["authorization","Bearer abc"]]',
                "body": b'{"order": %d, "note": "it\'s <b>bold</b>"}' % number,
                "idempotency_key": f"order-{number}",
                "status": status,
                "attempts": attempts,
                "earlier_attempts": 0,
                "max_attempts": ATTEMPTS,
                "next_attempt_at": now + 3_600_000 + number * 1000 if attempts else at,
                "takeovers": 0,
                "last_status_code": 200 if delivered else last and last.status_code,
                "last_error": NO_SECRET if number == 4 else last and last.error,
                "error_class": "waits" if number == 4 else last and last.kind,
                "waiting_since": now - 240_000 if number == 4 else None,
                "created_at": at,
                "updated_at": min(ended, now),
                "finished_at": min(ended, now) if status in {"delivered", "dead"} else None,
                "delivered_started_at": ended - 40 if delivered else None,
                "delivered_duration_ms": 40 if delivered else None,
                "delivered_response": b"ok" if delivered else None,
            },
            log,
        )


def _state(number: int) -> tuple[str, int]:
    """Give the state of a delivery and its attempts: the newest still wait, and one in ten or in fifty is dead."""
    if number % (10 if number < 500 else 50) == 1:
        return "dead", ATTEMPTS
    if number < 2000 and number % 10 == 0:
        return "retrying", 1 + number // 10 % 3
    if number < 200 and number % 10 == 4:
        return "pending", 0
    return "delivered", 2 if number % 10 == 7 else 1


def _workers(now: int, count: int) -> Iterator[dict[str, Any]]:
    """Give workers of which the third does not answer; the second's clock is wrong."""
    for number in range(count):
        yield a_worker(
            now,
            id=new_id(now / 1000 - 9000),
            name="delivery",
            version="0.2.0",
            host_name=f"web-{number + 1}",
            pid=41 + number,
            slots=100,
            in_flight=12,
            started_at=now - 9_000_000,
            # Ahead, so that they stay alive.
            last_seen_at=now + 600_000 if number < 2 else now - 60_000,
            last_claim_at=now + 600_000 if number < 2 else now - 61_000,
            stopped_at=None,
            clock_ahead_ms=(40, 90_000, -20)[number],
        )


def _statistics(now: int, places: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Give a day of intervals: the sums of all and of each organization, and each destination's of the last hour."""
    for bucket in range(288):
        at = (now // INTERVAL_MS - bucket) * INTERVAL_MS
        share = 6 + bucket * 7 % 5
        for organization, part in (("", 1), ("acme", 2), ("globex", 2)):
            yield _counts(at, organization, "", 2400 * share // part, bucket % 3 * 900 // part, 6 // part)
        for number, place in enumerate(places if bucket < 12 else ()):
            failed = number % 4 * 90
            yield _counts(at, ORGANIZATIONS[number % 2], place, 700 * share // (1 + number), failed, number % 4)


def _counts(
    at: int, organization_id: str, destination: str, delivered: int, failed: int, dead: int
) -> dict[str, Any]:
    return {
        "bucket": at,
        "organization_id": organization_id,
        "destination": destination,
        "delivered": delivered,
        "failed": failed,
        "dead": dead,
        "duration_ms": delivered * 40 + failed * 5000,
    }


def _pauses(now: int) -> Iterator[dict[str, Any]]:
    """Give the automatic pause of a destination, which was probed three times."""
    yield {
        "organization_id": ORGANIZATIONS[0],
        "destination": "https://down.example.com:443",
        "paused_at": now - 16 * 60_000,
        "paused_by": "flowactions",
        "paused_role": "automatic",
        "reason": "20 failures in a row since 2026-01-31 11:12:04Z, the last one: http_5xx",
        "probe_at": now + 4 * 60_000,
        "probes": 3,
    }


def _destinations(now: int, places: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Give what is known of destinations, of which one in four fails."""
    for number, place in enumerate(places):
        fails = number % 4 == 3
        yield {
            "organization_id": ORGANIZATIONS[number % 2],
            "destination": place,
            "last_success_at": now - (4_000_000 if fails else 900),
            "last_failure_at": now - 2000,
            "failing_since": now - 3_000_000 if fails else None,
            "failures_in_row": 27 if fails else 0,
            "last_error": "timeout" if fails else None,
            "alerted_at": None,
            "updated_at": now,
        }


def _inbound_events(now: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(count):
        auth = number % 3 == 0
        repeats = 2 if number % 20 == 0 else 0
        yield {
            "provider": "auth" if auth else "chat",
            "event_id": f"msg_{number + 1}" if auth else f"Ev{number:011d}",
            "received_at": now - 90_000 - number * 7000,
            "event_type": "organization.deleted" if auth else "app_uninstalled",
            "repeats": repeats,
            "repeated_at": now - 30_000 - number * 7000 if repeats else None,
        }


def _inbound_requests(now: int, count: int) -> Iterator[dict[str, Any]]:
    for number in range(max(count, len(UNPROCESSED)) if count > 1 else count):
        result, status, reason = UNPROCESSED[number % len(UNPROCESSED)]
        yield {
            "provider": "auth",
            "cause": f"{reason} {number}",
            "event_id": f"msg_r{number}",
            "event_type": "user.created",
            "first_at": now - 3_600_000,
            "last_at": now - 1000 * number,
            "result": result,
            "status_code": status,
            "reason": reason,
            "requests": 1 + number % 5 * 7,
        }


def _actions(now: int, kinds: int, more: int) -> Iterator[dict[str, Any]]:
    """Give bulk actions of so many kinds, the latest of which was stopped, and more that are done."""
    states = (
        ("retry", "stopped", "stopped by Ada", 50.0),
        ("retry", "done", None, None),
        ("cancel", "done", None, None),
        ("retry", "done", None, 20.0),
        ("delete", "done", None, None),
        ("resend", "stopped", "stopped by Ada", None),
    )
    for number in range(kinds + more):
        kind, state, why, rate = states[number if number < kinds else 1]
        at = now - 600_000 - number * 900_000
        name, shown, role = PEOPLE[number % len(PEOPLE)]
        yield {
            "id": new_id(at / 1000),
            "kind": kind,
            "organization_id": ("acme", "")[number % 2],
            "filter": str(Filter.of(status="dead", destination=DESTINATIONS[number % 4])),
            "as_of": at,
            "counted": 1200 + number,
            "actor_id": name,
            "actor_name": shown,
            "actor_role": role,
            "reason": REASONS[number % len(REASONS)],
            "reset_attempts": 0,
            "rate": rate,
            "state": state,
            "state_reason": why,
            "created_at": at,
            "finished_at": at + 90_000,
            "done": 10 if state == "stopped" else 1200 + number,
            "paced_done": 0,
        }


def _audit(now: int, count: int, deliveries: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Give lines of the audit of each kind; the first concern deliveries."""
    for number in range(count):
        at = now - 30_000 - number * 40_000
        name, shown, role = PEOPLE[number % len(PEOPLE)]
        delivery = deliveries[number] if number < len(deliveries) else None
        paused = delivery is None and number % 5 in {3, 4}
        action = "retry" if delivery else ("delete", "cancel", "stop", "pause", "resume")[number % 5]
        yield {
            "id": new_id(at / 1000),
            "at": at,
            "organization_id": ("acme", "globex", "")[number % 3]
            if not delivery
            else ORGANIZATIONS[number % 2],
            "actor_id": name,
            "actor_name": shown,
            "actor_role": role,
            "action": action,
            "delivery_id": delivery,
            "destination": DESTINATIONS[number % 4] if paused else None,
            "filter": None if delivery or paused else "status:dead error:http_5xx",
            "reason": REASONS[number % len(REASONS)],
            "number": 1 if delivery else 37 * number % 5000,
        }


def _connections(now: int, count: int) -> Iterator[dict[str, Any]]:
    """Give chat connections; the first was revoked, and the second lacks a permission."""
    for number in range(count):
        revoked, lacks = number == 0 and count > 1, number == 1
        yield a_connection(
            ORGANIZATIONS[number] if number < 2 else f"o-{number:04}",
            team_id=f"T{number:04}ACME",
            team_name=("Acme", "Globex")[number] if number < 2 else f"Workspace {number}",
            scopes="chat:write",
            installed_by_id="ada",
            installed_by_name="Ada",
            installed_at=now - DAY_MS * (3 + number % 200),
            status="revoked" if revoked else "active",
            status_reason="token_revoked" if revoked else None,
            default_channel="C0GENERAL",
            missing_scopes="channels:read,users:read" if lacks else "",
            last_error="missing_scope" if lacks else None,
            last_error_at=now - 120_000 if lacks else None,
            last_error_flow="order-placed" if lacks else None,
            last_error_node="tell-team" if lacks else None,
        )
