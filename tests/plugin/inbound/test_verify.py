"""Signatures and events of the auth provider."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from datetime import UTC, datetime

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.signature import sign_standard
from flowactions_plugin.errors import RequestInvalid
from flowactions_plugin.inbound.auth_events import Verifier
from flowactions_plugin.inbound.requests import NotAuthentic
from flowactions_plugin.settings.model import read_settings
from tests.auth_provider import CREATED, NEW, OTHER, Running, signed


class TestVerifying:
    async def test_the_host_receives_a_typed_event(self, run: Running) -> None:
        """With kind, action, time and data (§4.4)."""
        before = time.time()
        answer = await run.send()
        assert (answer.status_code, answer.json()) == (200, {"data": {"received": True, "duplicate": False}})
        (event,) = run.host.auth_events
        assert (event.provider, event.event_id, event.kind, event.action) == (
            "auth",
            "msg_1",
            "user",
            "created",
        )
        assert event.data == CREATED["data"]
        assert event.transaction is None
        assert int(before) <= event.occurred_at.timestamp() <= time.time()

    @pytest.mark.parametrize(
        ("name", "kind", "action"),
        [
            ("organization.created", "organization", "created"),
            ("user.email.verified", "user", "email.verified"),
            ("organizationMembership.created", "other", "organizationMembership.created"),
            ("ping", "other", "ping"),
            ("user", "other", "user"),
        ],
    )
    async def test_the_kind_of_an_event(self, run: Running, name: str, kind: str, action: str) -> None:
        """An event of no organization, user or session is ``other``, with its whole name."""
        assert (await run.send({"type": name, "data": {}})).status_code == 200
        (event,) = run.host.auth_events
        assert (event.kind, event.action) == (kind, action)

    @pytest.mark.parametrize("prefix", ["svix", "webhook"])
    async def test_both_spellings_verify(self, run: Running, prefix: str) -> None:
        """Svix's, and that of Standard Webhooks, by whose library they are signed (§5.4)."""
        body = json.dumps(CREATED).encode()
        moment = datetime.now(UTC).replace(microsecond=0)
        headers = {
            f"{prefix}-id": "msg_1",
            f"{prefix}-timestamp": str(int(moment.timestamp())),
            f"{prefix}-signature": standardwebhooks.Webhook(NEW).sign("msg_1", moment, body.decode()),
        }
        assert (await run.send(body, headers)).status_code == 200

    async def test_one_valid_signature_of_several_is_enough(self, run: Running) -> None:
        """During a rotation, the provider signs with both secrets."""
        body = json.dumps(CREATED).encode()
        headers = signed(body)
        headers["svix-signature"] = (
            f"v2,xxxx {signed(body, OTHER)['svix-signature']} {headers['svix-signature']}"
        )
        assert (await run.send(body, headers)).status_code == 200

    @pytest.mark.parametrize(("seconds", "status"), [(-310, 401), (-290, 200), (290, 200), (310, 401)])
    async def test_timestamps_may_be_five_minutes_off(self, run: Running, seconds: int, status: int) -> None:
        """Older and later ones are refused (§8)."""
        while True:
            before = time.time()
            answer = await run.send(at=before + seconds)
            if time.time() - before < 5:
                break  # otherwise the machine was busy, and the stamp ten seconds from the bound is another
        assert answer.status_code == status

    async def test_malformed_headers_are_refused(self, run: Running) -> None:
        """Each is a 401, and the host is not called."""
        changes: list[dict[str, str | None]] = [
            {"svix-id": None},
            {"svix-signature": None},
            {"svix-id": ""},
            {"svix-id": "msg_2"},
            {"svix-id": "msg_é"},
            {"svix-id": "m" * 201},
            {"svix-timestamp": "nan"},
            {"svix-timestamp": "1e9"},
            {"svix-timestamp": "-1"},
            {"svix-timestamp": "9" * 400},
            {"svix-signature": "v1"},
            {"svix-signature": "v1,,"},
            {"svix-signature": "v1,é"},
            {"svix-signature": "v1,%%%"},
            {"svix-signature": "v1a,AAAA"},
            {"svix-signature": "v1,AAAA " * 500},
        ]
        for change in changes:
            body = json.dumps(CREATED).encode()
            headers = {
                name: value.encode("latin-1")
                for name, value in {**signed(body), **change}.items()
                if value is not None
            }
            answer = await run.client.post("/webhooks/auth", content=body, headers=[*headers.items()])  # type: ignore[arg-type]
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), change
            assert run.host.auth_events == []
        assert (await run.send(b"\xff\xfe", signed(b"x"))).status_code == 401

    @given(st.binary(), st.text(), st.text(), st.text())
    def test_any_unsigned_input_is_not_authentic(
        self, body: bytes, event_id: str, timestamp: str, signature: str
    ) -> None:
        """Whatever the bytes, no other error is raised."""
        headers = {"svix-id": event_id, "svix-timestamp": timestamp, "svix-signature": signature}
        with pytest.raises(NotAuthentic):
            Verifier([NEW]).verify(headers, body)

    @given(st.text('{}[]":,0123456789 aetypd.\\u\x00') | st.text())
    def test_any_signed_text_is_parsed_or_refused(self, body: str) -> None:
        """A signed body that is not an event is invalid."""
        with contextlib.suppress(RequestInvalid, UnicodeEncodeError):
            Verifier([NEW]).verify(signed(body.encode()), body.encode())

    async def test_a_signed_body_that_is_not_an_event_is_invalid(self, run: Running) -> None:
        """400, and nothing is recorded."""
        for body in [
            b"",
            b"{",
            b"7",
            b'{"type":7,"data":{}}',
            b'{"type":"","data":{}}',
            b'{"type":"user.created"}',
            b"[" * 100_000,
            b'{"type":"user.created","type":"user.deleted","data":{}}',
            b'{"type":"user.created","data":{"x":NaN}}',
            b'{"type":"user.created","data":{"x":"\\ud800"}}',
            b'\xef\xbb\xbf{"type":"user.created","data":{}}',
            json.dumps({"type": "x" * 201, "data": {}}).encode(),
        ]:
            answer = await run.send(body)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body[:80]
        # Of another encoding: the scheme's library signs text.
        headers, latin = signed(b""), b'{"type":"user.created","data":{"name":"Zo\xeb"}}'
        headers["svix-signature"] = sign_standard(NEW, "msg_1", int(headers["svix-timestamp"]), latin)
        assert (await run.send(latin, headers)).status_code == 400

    @pytest.mark.parametrize("form", ["{}", " {} ", "{}="])
    def test_a_secret_may_be_written_without_prefix_and_padding(self, form: str) -> None:
        """Providers show it in both forms."""
        secret = "whsec_" + base64.b64encode(b"s" * 16).decode()
        for text_ in (
            secret,
            secret.removeprefix("whsec_"),
            secret.rstrip("="),
            secret.removeprefix("whsec_").rstrip("="),
        ):
            assert read_settings({"AUTH_WEBHOOK_SIGNING_SECRET": form.format(text_)}).auth_secrets == (secret,)
