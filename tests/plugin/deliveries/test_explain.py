from __future__ import annotations

import ssl
from typing import Any

import msgspec
import pytest

from flowactions_plugin.clock import to_iso
from flowactions_plugin.egress import transport_errors
from flowactions_plugin.egress.attempt import CLOSED_KEPT, LOST_KEPT
from flowactions_plugin.insights.findings import why_not_sent
from flowactions_plugin.insights.results import Attempt, DeliveryDetail, Pause, Worker
from flowactions_plugin.insights.views import certainty
from flowactions_plugin.storage.schema import QUARANTINE_AFTER

NOW = 1_900_000_000_000
WHERE = "example.com:443"


def attempt(error: str | None, status_code: int | None = None) -> Attempt:
    return Attempt(number=1, started_at=None, duration_ms=1, status_code=status_code, error=error, response="")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("timed out after 10 s while resolving the name", "never connected"),
        ("timed out after 10 s while connecting", "never connected"),
        ("timed out after 10 s while making the TLS handshake", "never connected"),
        ("timed out after 10 s while sending the request", "sent, no answer"),
        ("timed out after 10 s while waiting for the answer", "sent, no answer"),
        ("timed out after 10 s while sending the request or waiting for the answer", "sent, no answer"),
        (transport_errors.no_address("example.com", OSError("nothing")), "never connected"),
        (transport_errors.cannot_connect(WHERE, ConnectionRefusedError()), "never connected"),
        (transport_errors.cannot_connect(WHERE, ssl.SSLCertVerificationError()), "never connected"),
        (f"{transport_errors.PROXY_FAILED}: it cannot be reached", "never connected"),
        (transport_errors.no_tunnel(WHERE, "it opened no tunnel (503)"), "never connected"),
        ("Requests to 10.0.0.1 are not allowed (private).", "never connected"),
        (transport_errors.closed_unanswered(WHERE), "sent, no answer"),
        (transport_errors.broke(WHERE, OSError("reset")), "sent, no answer"),
        (transport_errors.broke_off(WHERE), "answered"),
        (transport_errors.not_http(WHERE, "no status line"), "answered"),
        ("ValueError: unforeseen", "sent, no answer"),
    ],
)
def test_it_is_said_whether_the_receiver_can_have_had_an_attempt(error: str, expected: str) -> None:
    """Where the reason does not say, it may have: a replay could bring it a second time."""
    assert certainty(None, error, None) == expected


@pytest.mark.parametrize("note", [CLOSED_KEPT, LOST_KEPT])
def test_a_request_that_found_no_fresh_connection_may_have_arrived_on_the_kept_one(note: str) -> None:
    """Only the second connection has failed."""
    assert certainty(None, transport_errors.cannot_connect(WHERE, TimeoutError()), note) == "sent, no answer"


def test_an_attempt_with_a_status_was_answered() -> None:
    """Whatever went wrong afterwards."""
    assert certainty(500, "timed out after 10 s while connecting", None) == "answered"


def a_row(**changes: Any) -> DeliveryDetail:
    """Give a row; its times are Unix milliseconds, ``due_at`` is that of its next attempt."""
    values: dict[str, Any] = {
        **dict.fromkeys(DeliveryDetail.__struct_fields__),
        "destination": "https://a.example:443",
        "status": "pending",
        "attempts": 0,
        "due_at": NOW - 1000,
        **changes,
    }
    values["next_attempt_at"] = values.pop("due_at")
    for name in ("next_attempt_at", "claimed_at", "claimed_until", "waiting_since"):
        if values[name] is not None:
            values[name] = to_iso(values[name])
    return DeliveryDetail(**values)


def a_worker(**changes: Any) -> Worker:
    values: dict[str, Any] = {
        **dict.fromkeys(Worker.__struct_fields__, 0),
        "name": "w1",
        "mode": "continuous",
        "state": "alive",
    }
    return Worker(**{**values, **changes})


PAUSE = Pause(
    organization_id="",
    destination="d",
    paused_at=NOW,
    paused_by="Ann",
    paused_role="operator",
    reason="they asked",
)


PROBED = msgspec.structs.replace(PAUSE, probe_at=NOW + 60_000, probes=2, reason="20 failures")
CLAIMED = {"claimed_at": NOW, "claimed_until": NOW + 28_000}
FAILED = {"due_at": NOW + 12_000, "attempts": 1}
ALIVE = {"workers": [a_worker()]}
READ_ONLY = {"refusal": "it is read-only"}


@pytest.mark.parametrize(
    ("row", "given", "says"),
    [
        ({"status": "delivered", "attempts": 2, "finished_at": "2030-03-17T17:46:40.000Z"}, {}, "by attempt 2"),
        (
            {"status": "dead", "last_error": "it answered 500"},
            {},
            "It failed at an unknown time: it answered 500.",
        ),
        ({"status": "dead", "last_error": "gone"}, {"pause": PAUSE}, "It failed at"),
        (CLAIMED, {}, "It is claimed by a worker for attempt 1"),
        (CLAIMED, ALIVE, "It is claimed by a worker"),
        (CLAIMED, {"holder": a_worker()}, "It is claimed by worker w1 for"),
        (
            CLAIMED,
            {"holder": a_worker(state="stale", last_seen_at=NOW - 60_000)},
            "It is claimed by worker w1, which does not answer since 2030-03-17T17:45:40Z, for",
        ),
        (CLAIMED, {"holder": a_worker(state="stopped")}, "It is claimed by worker w1, which has stopped, for"),
        (CLAIMED, {"pause": PAUSE}, "It is claimed"),
        ({}, {"pause": PAUSE}, "paused for all organizations by Ann at 2030-03-17T17:46:40Z (they asked)"),
        ({}, {"pause": PROBED}, "until one delivery arrives; the next one is sent at 2030-03-17T17:47:40Z."),
        ({"waiting_since": NOW, "due_at": NOW + 5000, "last_error": "Host failed"}, {}, "in 5 s: Host failed."),
        (
            {**FAILED, "error_class": "http_5xx"},
            {},
            "The backoff before attempt 2 ends in 12 s, at 2030-03-17T17:46:52Z; the last one failed: http_5xx.",
        ),
        (
            {**FAILED, "error_class": "http_4xx", "last_status_code": 401},
            {},
            "the last one failed: http_4xx (401).",
        ),
        ({"due_at": NOW + 300_000}, {}, "in 5 min"),
        (
            {
                "destination": "chat://T1",
                "due_at": NOW + 5000,
                "error_class": "waits",
                "last_error": "it pauses",
            },
            {},
            "It waits, without using up an attempt, and it is tried again in 5 s: it pauses.",
        ),
        (
            {"reclaims": 5, "quarantine_rounds": 2},
            ALIVE,
            "sent alone; 2 of 3 such attempts have ended their worker",
        ),
        ({"reclaims": 5}, {}, "no worker is alive"),
        ({"reclaims": QUARANTINE_AFTER - 1}, ALIVE, "claims it soon"),
        ({}, {}, "no worker is alive"),
        ({}, {"workers": [a_worker(state="stale")]}, "no worker is alive"),
        ({"due_at": NOW - 9999}, {"workers": [a_worker(), a_worker()]}, "claims it soon"),
        ({"due_at": NOW - 10_000}, ALIVE, "when it has a slot free for its destination"),
        ({}, {"workers": [a_worker(mode="scheduled")]}, "at its next tick"),
        ({"due_at": None}, ALIVE, "claims it soon"),
        ({}, {**ALIVE, **READ_ONLY}, "the database takes no writes: it is read-only."),
        ({"due_at": NOW + 5000}, READ_ONLY, "The backoff before attempt 1 ends in 5 s"),
    ],
)
def test_why_a_delivery_is_not_sent_is_said_in_one_sentence(
    row: dict[str, Any], given: dict[str, Any], says: str
) -> None:
    """Of several reasons, the one that has to end first; what is being sent is held back by no pause."""
    others = {name: value for name, value in given.items() if name != "pause"}
    sentence = why_not_sent(a_row(**row), given.get("pause"), NOW, **others)
    assert says in sentence
    assert sentence.endswith(".")
    assert sentence.count(". ") == 0
