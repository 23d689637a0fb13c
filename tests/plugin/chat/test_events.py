from __future__ import annotations

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import signature
from flowactions_hookspecs import FlowActions
from flowactions_plugin.chat.events import check_signature
from flowactions_plugin.chat.store import Revocation, StoredConnection
from flowactions_plugin.inbound.requests import NotAuthentic
from flowactions_plugin.operators.scope import Scope
from tests.chatting import ChatHost, chat_host, chat_settings
from tests.support import SmallHost, development, services_of, transport_of

EVENTS = "/integrations/chat/events"

PUBLISHED_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"
PUBLISHED_AT = 1531420618
PUBLISHED_BODY = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
    b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
    b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
    b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)
PUBLISHED_SIGNATURE = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"


def uninstalled(team: str = "T0000ACME", **changes: Any) -> dict[str, Any]:
    return {
        "type": "event_callback",
        "team_id": team,
        "api_app_id": "A0FAKE",
        "event": {"type": "app_uninstalled"},
        "event_id": f"Ev{time.monotonic_ns()}",
        "event_time": int(time.time()),
        **changes,
    }


def revoked(*bots: str, team: str = "T0000ACME", **changes: Any) -> dict[str, Any]:
    tokens = {"oauth": [], "bot": list(bots)}
    return uninstalled(team, event={"type": "tokens_revoked", "tokens": tokens}, **changes)


async def send(run: ChatHost, body: Any, at: float | None = None) -> httpx.Response:
    """Send an event, signed as the provider signs it."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    stamp = int(time.time() if at is None else at)
    headers = {
        "x-slack-request-timestamp": str(stamp),
        "x-slack-signature": signature(SIGNING_SECRET, stamp, raw),
    }
    return await run.browser.post(EVENTS, content=raw, headers=headers)


async def status(run: ChatHost, organization: str) -> tuple[str, str | None]:
    run.sign_in(organization)
    card = await run.card()
    return card["status"], card["statusReason"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("at", "secret", "said"),
        [
            (0, "another secret", "the signature does not fit CHAT_SIGNING_SECRET"),
            (-4000, SIGNING_SECRET, "s in the past, more than five minutes; the signature fits: compare this"),
            (4000, SIGNING_SECRET, "s in the future, more than five minutes; the signature fits: compare this"),
            (
                -4000,
                "another secret",
                "s in the past, more than five minutes; the signature does not fit either",
            ),
            (None, SIGNING_SECRET, "X-Slack-Request-Timestamp or X-Slack-Signature is missing"),
        ],
    )
    async def test_each_cause_is_logged_and_not_answered(
        self, run: ChatHost, at: int | None, secret: str, said: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A wrong secret and a wrong clock are distinguished, and neither secret nor signature is logged."""
        stamp = int(time.time()) + (at or 0)
        signed = signature(secret, stamp, b"{}")
        headers = {"x-slack-signature": signed}
        if at is not None:
            headers["x-slack-request-timestamp"] = str(stamp)
        answer = await run.browser.post(EVENTS, content=b"{}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert answer.json()["detail"] == "The signature is missing, wrong or too old."
        (line,) = [record.getMessage() for record in caplog.records if record.name == "flowactions.chat"]
        assert line.startswith("POST /integrations/chat/events refused: ")
        assert said in line
        assert signed not in line
        assert SIGNING_SECRET not in line


class TestVerifying:
    def test_the_published_example_verifies(self) -> None:
        """The provider's own documentation has this secret, body and signature."""
        arguments = (str(PUBLISHED_AT), PUBLISHED_SIGNATURE, PUBLISHED_BODY)
        for later in (-300, 0, 300):
            check_signature([PUBLISHED_SECRET], *arguments, PUBLISHED_AT + later)
        for later in (-301, 301):
            with pytest.raises(NotAuthentic, match="more than five minutes; the signature fits"):
                check_signature([PUBLISHED_SECRET], *arguments, PUBLISHED_AT + later)
        with pytest.raises(NotAuthentic, match="does not fit CHAT_SIGNING_SECRET"):
            check_signature(["another secret"], *arguments, PUBLISHED_AT)

    @pytest.mark.parametrize(
        ("timestamp", "signed", "body"),
        [
            (None, None, PUBLISHED_BODY),
            (None, PUBLISHED_SIGNATURE, PUBLISHED_BODY),
            (str(PUBLISHED_AT), None, PUBLISHED_BODY),
            (str(PUBLISHED_AT), "", PUBLISHED_BODY),
            (str(PUBLISHED_AT), "v0=00", PUBLISHED_BODY),
            (str(PUBLISHED_AT), "v0=é", PUBLISHED_BODY),
            (str(PUBLISHED_AT), PUBLISHED_SIGNATURE.replace("v0", "v1"), PUBLISHED_BODY),
            (str(PUBLISHED_AT), PUBLISHED_SIGNATURE.upper(), PUBLISHED_BODY),
            (str(PUBLISHED_AT), PUBLISHED_SIGNATURE, b"tampered"),
            (str(PUBLISHED_AT), PUBLISHED_SIGNATURE, b"\xff\xfe\x00"),
            *(
                (stamp, PUBLISHED_SIGNATURE, PUBLISHED_BODY)
                for stamp in (f"{PUBLISHED_AT}.0", f"+{PUBLISHED_AT}", "soon", "-1", "9" * 5000, "²")
            ),
        ],
    )
    def test_anything_else_is_not_authentic(
        self, timestamp: str | None, signed: str | None, body: bytes
    ) -> None:
        """Tampered, missing, non-numeric, non-ASCII and non-UTF-8 are all refused, and nothing else is raised (§5.4)."""
        with pytest.raises(NotAuthentic):
            check_signature([PUBLISHED_SECRET], timestamp, signed, body, PUBLISHED_AT)

    async def test_several_secrets_count_while_one_is_replaced(self, sqlite_url: str) -> None:
        """What one of them has signed is taken, and nothing else (§5.4)."""
        for named, answered in (
            (f"new, {SIGNING_SECRET}", 200),
            (f"{SIGNING_SECRET},old", 200),
            ("new,old", 401),
        ):
            async with chat_host(sqlite_url, CHAT_SIGNING_SECRET=named) as run:
                assert (await send(run, {})).status_code == answered

    async def test_a_body_that_is_too_large_is_refused(self, run: ChatHost) -> None:
        """More than 1 MiB is not read."""
        answer = await run.browser.post(EVENTS, content=b"x" * (1024 * 1024 + 1))
        assert answer.status_code == 413
        assert answer.headers["content-type"].startswith("application/problem+json")

    async def test_without_a_secret_the_answer_names_the_setting(self, database_url: str) -> None:
        """Without the provider's settings or its signing secret: 503 (§5.5)."""
        without = chat_settings(database_url, "http://127.0.0.1:1")
        del without["CHAT_SIGNING_SECRET"]
        for settings, named in (
            (without, "CHAT_SIGNING_SECRET"),
            (development(database_url), "CHAT_CLIENT_ID"),
        ):
            actions = FlowActions.load(SmallHost(settings))
            transport = transport_of(actions)
            async with (
                actions.lifespan(),
                httpx.AsyncClient(transport=transport, base_url="http://host") as client,
            ):
                answer = await client.post(EVENTS, content=b"{}")
            assert (answer.status_code, answer.json()["code"]) == (503, "not_configured")
            assert named in answer.json()["detail"]


class TestReading:
    async def test_a_signed_body_that_is_not_an_event_is_invalid(self, run: ChatHost) -> None:
        """Whatever the provider signs, the answer is not 500."""
        for body in [
            b"",
            b"{",
            b"[]",
            b"7",
            b"\xff",
            b"[" * 100_000,
            b'{"type":"url_verification"}',
            b'{"type":"url_verification","challenge":7}',
            json.dumps(uninstalled(event_id=None)).encode(),
            json.dumps(uninstalled(event_id="")).encode(),
            json.dumps(uninstalled(event_id="Ev\u0000")).encode(),
            json.dumps(uninstalled(event_id="Ev\ud800")).encode(),
            json.dumps(uninstalled(event_id="E" * 201)).encode(),
            json.dumps(uninstalled(team_id="T\u0000")).encode(),
            json.dumps(uninstalled(team_id=7)).encode(),
            json.dumps(uninstalled(api_app_id=["A"])).encode(),
        ]:
            answer = await send(run, body)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body[:80]

    async def test_the_challenge_is_returned(self, run: ChatHost) -> None:
        """The provider verifies the URL before it sends events; without a signature, the answer is 401 (§4.1.4)."""
        body = {"type": "url_verification", "challenge": "3eZbrw1aB10n0pFHbrvAp", "token": "x"}
        answer = await send(run, body)
        assert (answer.status_code, answer.json()) == (200, {"challenge": body["challenge"]})
        assert (await run.browser.post(EVENTS, json=body)).status_code == 401

    async def test_an_event_without_a_connection_is_acknowledged(self, run: ChatHost) -> None:
        """Other types, workspaces, apps and bots change nothing (§4.1)."""
        await run.connect()
        bodies: list[dict[str, Any]] = [
            {},
            {"type": "app_rate_limited", "team_id": "T0000ACME"},
            uninstalled(event={"type": "message", "text": "hi"}),
            uninstalled(event={"type": "message"}, event_id=None),
            uninstalled(event="app_uninstalled"),
            uninstalled(event={"type": ["app_uninstalled"]}),
            uninstalled(team_id=None, enterprise_id="E1"),
            uninstalled("T0NOBODY"),
            revoked(),
            revoked("UANOTHER"),
            uninstalled(event={"type": "tokens_revoked"}),
            uninstalled(event={"type": "tokens_revoked", "tokens": {"oauth": ["UBOT000ACME"], "bot": None}}),
            uninstalled(event={"type": "tokens_revoked", "tokens": ["UBOT000ACME"]}),
            uninstalled(api_app_id="AANOTHER"),
            uninstalled(event={"type": "message", "text": "cut \ud83d"}),
            uninstalled(event={"type": "\ud83d"}),
        ]
        for body in bodies:
            stamp = (
                {"event_time": int(time.time())} if "event_time" in body else {}
            )  # before the install: stale
            answer = await send(run, {**body, **stamp})
            assert answer.status_code == 200, body
            assert answer.json() == {"data": {"received": True, "duplicate": False}}, body
            assert await status(run, "acme") == ("active", None), body

    async def test_our_event_is_processed_although_a_text_beside_it_is_cut(self, run: ChatHost) -> None:
        """Half a surrogate pair in what is not read revokes no less."""
        await run.connect()
        assert (await send(run, uninstalled(team_domain="cut \ud83d"))).status_code == 200
        assert await status(run, "acme") == ("revoked", "app_uninstalled")

    async def test_operators_see_what_was_acknowledged_processed_and_refused(self, run: ChatHost) -> None:
        """With its type and its id, as far as the provider has signed them (§6.2)."""
        message = uninstalled(event={"type": "message", "text": "hi"}, event_id="Ev1")
        for body in (message, uninstalled(event_id="Ev2"), {"type": "url_verification", "challenge": "x"}):
            assert (await send(run, body)).status_code == 200
        assert (await send(run, message, at=1)).status_code == 401
        queries = services_of(run.host)._insights
        page = await queries.inbound(Scope(), None, None, 10)
        assert [(each.provider, each.event_type, each.event_id) for each in page.rows] == [
            ("chat", "app_uninstalled", "Ev2")
        ]
        assert {(each.provider, each.event_type, each.event_id, each.result) for each in page.reasons} == {
            ("chat", "message", "Ev1", "acknowledged"),
            ("chat", "url_verification", None, "acknowledged"),
            ("chat", None, None, "refused"),
        }


class TestRevoking:
    @pytest.mark.parametrize(
        ("event", "reason"),
        [(uninstalled(), "app_uninstalled"), (revoked("UOTHER", "UBOT000ACME"), "token_revoked")],
    )
    async def test_after_a_revocation_card_and_nodes_advise_to_reconnect(
        self, run: ChatHost, event: dict[str, Any], reason: str
    ) -> None:
        """Nothing is sent, the provider is not called, and a reconnect repairs it (§6.2)."""
        await run.connect()
        event = {**event, "event_time": int(time.time())}
        assert (await send(run, event)).json()["data"]["duplicate"] is False
        card = await run.card()
        assert (card["status"], card["statusReason"]) == ("revoked", reason)
        assert "Reconnect" in card["advice"]
        run.provider.calls.clear()
        result = await run.message()
        assert (result.status, result.reason, result.halt) == ("failed", "send_failed", False)
        assert "Reconnect" in (result.message or "")
        test = await run.browser.post("/integrations/chat/send-message", json={"text": "x"})
        assert test.json()["code"] == "no_default_channel"
        assert run.provider.calls == []
        assert await run.connect() == {"chat": "connected"}
        assert (await run.message()).status == "sent"

    async def test_an_uninstall_revokes_the_connection(self, run: ChatHost) -> None:
        """The provider's two events, in either order, leave one revoked connection."""
        await run.connect()
        (workspace, _) = run.provider.state.workspaces
        for body in (revoked(workspace.bot_user_id), uninstalled()):
            assert (await send(run, body)).status_code == 200
        assert await status(run, "acme") == ("revoked", "token_revoked")

    async def test_an_event_is_processed_once(self, run: ChatHost) -> None:
        """A redelivery after a reconnect is acknowledged and has no effect, also one of 20 concurrent ones."""
        await run.connect()
        event = uninstalled()
        answers = await asyncio.gather(*(send(run, event) for _ in range(20)))
        assert [answer.status_code for answer in answers] == [200] * 20
        assert sorted(answer.json()["data"]["duplicate"] for answer in answers) == [False] + [True] * 19
        await run.connect()
        assert (await send(run, event)).json()["data"] == {"received": True, "duplicate": True}
        assert await status(run, "acme") == ("active", None)

    async def test_an_event_before_the_install_is_ignored(self, run: ChatHost) -> None:
        """A reinstall that was faster than the event stays active (§6.2)."""
        await run.connect()
        for event in (uninstalled(event_time=int(time.time()) - 60), revoked("UBOT000ACME", event_time=1)):
            assert (await send(run, event)).json()["data"]["duplicate"] is False
        assert await status(run, "acme") == ("active", None)

    async def test_an_event_revokes_the_connections_of_its_workspace_alone(self, run: ChatHost) -> None:
        """All of them; of two organizations that share it, each reconnects only itself."""
        for organization, workspace in (("acme", "T0000ACME"), ("globex", "T0000ACME"), ("apart", "T00GLOBEX")):
            run.sign_in(organization)
            await run.connect(workspace=workspace)
        await send(run, uninstalled())
        assert await status(run, "apart") == ("active", None)
        assert (await run.message("apart")).status == "sent"
        assert (await run.message("globex")).reason == "send_failed"
        assert await status(run, "acme") == ("revoked", "app_uninstalled")
        assert await status(run, "globex") == ("revoked", "app_uninstalled")
        await run.connect()
        assert await status(run, "globex") == ("active", None)
        assert await status(run, "acme") == ("revoked", "app_uninstalled")

    async def test_recorded_events_are_pruned(self, run: ChatHost) -> None:
        """After the retention."""
        services = services_of(run.host)
        for _ in range(3):
            await send(run, uninstalled("T0NOBODY"))
        async with services._database.write() as connection:
            await connection.exec_driver_sql("UPDATE flowactions_inbound_events SET received_at = 1")
        await send(run, uninstalled("T0NOBODY", event_id="Ev-kept"))
        for prune in services._prunes():
            await prune(100)
        async with services._database.read() as connection:
            left = await connection.exec_driver_sql("SELECT event_id FROM flowactions_inbound_events")
            assert left.all() == [("Ev-kept",)]


@pytest.mark.parametrize(
    ("app", "stored_app", "bots", "installed_at", "expected"),
    [
        ("A1", "A1", None, 7_999, True),
        ("A1", "A1", None, 8_000, False),
        ("A1", "A2", None, 0, False),
        ("", "A2", None, 0, True),
        ("A1", "", None, 0, True),
        ("A1", "A1", frozenset({"B1"}), 0, True),
        ("A1", "A1", frozenset({"B2"}), 0, False),
    ],
)
def test_an_event_revokes_what_was_installed_before_it(
    app: str, stored_app: str, bots: frozenset[str] | None, installed_at: int, *, expected: bool
) -> None:
    """Of its app, as far as both are known, and of its bot users, if it names any."""
    event = Revocation(
        event_id="e", team_id="T", app_id=app, bot_users=bots, at=7, event_type="t", reason="app_uninstalled"
    )
    stored = SimpleNamespace(bot_user_id="B1", app_id=stored_app, installed_at=installed_at)
    assert event.applies_to(cast("StoredConnection", stored)) == expected
