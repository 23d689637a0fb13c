from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_hookspecs import Header
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.queue.rules import (
    Timing,
    Transition,
    backoff,
    capped_attempts,
    delivery_headers,
    event_id,
    method_name,
    probe_delay_ms,
    timing_of,
    transition,
)
from flowactions_plugin.settings.model import read_settings


def answered(status: int, **more: Any) -> Outcome:
    return Outcome(0, 0, status_code=status, **more)


def test_backoff_follows_the_rule() -> None:
    """After attempt n: min(300, max(5, 2^n)) seconds (§8)."""
    assert [backoff(attempt) for attempt in range(1, 12)] == [5, 5, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert backoff(10**6) == 300


def test_probes_grow_apart_up_to_an_hour() -> None:
    """Twice as long each time, from a minute on."""
    assert [probe_delay_ms(sent) // 60_000 for sent in range(-1, 9)] == [1, 1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert probe_delay_ms(10**9) == 3600_000


@pytest.mark.parametrize("seconds", range(1, 61))
def test_times_follow_from_how_long_an_attempt_may_take(seconds: int) -> None:
    """A row that began as late as it may still ends within its lease, after a stall or an outage that counts as none."""
    timing = timing_of(seconds)
    assert timing.deadline_seconds == seconds
    assert timing.spare_seconds == 20
    assert (timing.wait_seconds, timing.outage_seconds, timing.stop_seconds) == (10, 5, seconds + 8)
    assert (
        timing.wait_seconds + seconds + max(timing.stall_seconds, timing.outage_seconds) < timing.lease_seconds
    )
    assert not timing.is_too_late(timing.wait_seconds, timing.lease_seconds)
    assert not timing.is_too_late(18, timing.lease_seconds)
    assert timing.is_too_late(18.1, timing.lease_seconds)
    assert timing.quarantine_seconds == max(10, seconds)


def test_times_without_the_setting_are_those_of_the_specification() -> None:
    """Ten seconds, a lease of thirty (§8)."""
    assert timing_of(read_settings({}).delivery_timeout) == Timing(30, 10, 10)
    assert Timing().stall_seconds == 7.5


@pytest.mark.parametrize(
    ("attempt", "outcome", "expected"),
    [
        (1, answered(200), Transition("delivered")),
        (4, answered(299), Transition("delivered")),
        (1, answered(199), Transition("retrying", 5)),
        (1, answered(300), Transition("retrying", 5)),
        (3, answered(500), Transition("retrying", 8)),
        (4, answered(500), Transition("dead")),
        (1, Outcome(0, 0, error="timed out"), Transition("retrying", 5)),
        (4, Outcome(0, 0, error="timed out"), Transition("dead")),
        (1, Outcome(0, 0, error="refused", final=True), Transition("dead")),
        (1, answered(503, retry_after=60), Transition("retrying", 60)),
        (1, answered(503, retry_after=1), Transition("retrying", 5)),
        (1, answered(503, retry_after=10**9), Transition("retrying", 300)),
        (5, answered(200), Transition("delivered")),
        (1, answered(200, error="the answer ended before its length"), Transition("retrying", 5)),
    ],
)
def test_a_row_follows_the_table_of_states(attempt: int, outcome: Outcome, expected: Transition) -> None:
    """2xx delivers; anything else retries while attempts remain, then is dead (§3.1)."""
    assert transition(attempt, 4, outcome) == expected


def test_attempts_stay_within_the_cap() -> None:
    """A row never gets fewer than 1 or more than 10 attempts (§8)."""
    assert [capped_attempts(wanted) for wanted in (-1, 0, 1, 5, 10, 11)] == [1, 1, 1, 5, 10, 10]


def test_the_event_id_is_the_digest_of_its_length_prefixed_parts() -> None:
    """Anyone can compute the id from type, entity and payload."""
    parts = (b"t", b"run/node", b"{}")
    digest = hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts))
    assert event_id("t", "run/node", b"{}") == f"evt_{digest.hexdigest()}"


def test_headers_begin_with_those_of_the_service() -> None:
    """The service's headers are always there; a body brings its content type unless one is given (§2.6)."""
    headers, dropped = delivery_headers(
        [Header(key="X-One", value="1")], event_id="evt_1", event_type="t", has_body=True
    )
    assert headers == (
        ("user-agent", "Service-Webhooks/1"),
        ("accept", "*/*"),
        ("x-service-webhook-id", "evt_1"),
        ("x-service-webhook-event", "t"),
        ("X-One", "1"),
        ("content-type", "application/json"),
    )
    assert dropped == ()


def test_a_custom_content_type_replaces_the_default_and_no_body_has_none() -> None:
    """The author's content type wins; without a body there is none."""
    given_type = [Header(key="Content-Type", value="application/cloudevents+json")]
    headers, _ = delivery_headers(given_type, event_id="e", event_type="t", has_body=True)
    assert [value for name, value in headers if name.lower() == "content-type"] == [
        "application/cloudevents+json"
    ]
    headers, _ = delivery_headers([], event_id="e", event_type="t", has_body=False)
    assert "content-type" not in dict(headers)


@pytest.mark.parametrize("name", ["accept", "Accept"])
def test_an_authors_accept_replaces_ours(name: str) -> None:
    """Another value, and even none."""
    for value in ("application/json", ""):
        headers, _ = delivery_headers(
            [Header(key=name, value=value)], event_id="e", event_type="t", has_body=False
        )
        assert [each for each in headers if each[0].lower() == "accept"] == [(name, value)]


@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "content-length",
        "Transfer-Encoding",
        "connection",
        "User-Agent",
        "X-Service-Webhook-Id",
        "x-service-webhook-anything",
        "x_service_webhook_signature",
        "X-Service_Webhook-Timestamp",
        "content_length",
        "Transfer_Encoding",
        "USER_AGENT",
        "proxy_authorization",
        "expect",
        "a b",
        "a:b",
        "a\r\nb",
        "é",
    ],
)
def test_a_reserved_or_invalid_name_is_dropped_and_returned(name: str) -> None:
    """Custom headers never replace the service's own or steer the connection."""
    headers, dropped = delivery_headers(
        [Header(key=name, value="evil")], event_id="e", event_type="t", has_body=False
    )
    assert dropped == (name,)
    assert "evil" not in dict(headers).values()


def test_an_entry_without_a_name_is_dropped_silently() -> None:
    """A row of the form that was left empty is no mistake (§2.4)."""
    headers, dropped = delivery_headers(
        [Header(value="x"), Header(key="  ", value="y")], event_id="e", event_type="t", has_body=False
    )
    assert (len(headers), dropped) == (4, ())


@given(st.text())
def test_a_header_value_never_holds_a_control_character(value: str) -> None:
    """Carriage returns, line feeds, NUL and their like become spaces."""
    headers, _ = delivery_headers([Header(key="x", value=value)], event_id="e", event_type="t", has_body=False)
    sent = dict(headers)["x"]
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in sent)


def test_a_method_is_written_in_capitals() -> None:
    """Known and unknown methods pass; what is no method's name does not."""
    assert [method_name(text) for text in ("post", " Patch ", "", "PURGE")] == [
        "POST",
        "PATCH",
        "POST",
        "PURGE",
    ]
    assert [method_name(text) for text in ("P OST", "GET\r\nX: 1", "connect", "é", "A" * 33)] == [None] * 5
