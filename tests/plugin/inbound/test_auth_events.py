from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import standardwebhooks.webhooks
import svix.webhooks
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_hookspecs import AuthEvent, FlowActions, SettingsInvalid
from flowactions_plugin.errors import EventInvalid, StorageUnavailable
from flowactions_plugin.inbound.refusals import RefusalLog
from flowactions_plugin.inbound.requests import NotAuthentic
from flowactions_plugin.inbound.verify import Verifier
from flowactions_plugin.settings import read_settings
from tests.auth_provider import CREATED, NEW, OLD, OTHER, Running, signed
from tests.chatting import chat_host
from tests.support import SmallHost, development, services_of
from tests.waiting import until


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    host = SmallHost(development(database_url, AUTH_WEBHOOK_SIGNING_SECRET=f"{NEW}, {OLD}"))
    actions = FlowActions.load(host)
    async with actions.lifespan():
        running = Running(host, actions)
        async with running.client:
            yield running


class TestVerifying:
    async def test_an_event_reaches_the_host_typed(self, run: Running) -> None:
        """Kind, action, time and data are told apart (§4.4)."""
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
            ("session.ended", "session", "ended"),
            ("user.email.verified", "user", "email.verified"),
            ("organizationMembership.created", "other", "organizationMembership.created"),
            ("ping", "other", "ping"),
            ("user", "other", "user"),
            ("user.", "other", "user."),
        ],
    )
    async def test_kinds(self, run: Running, name: str, kind: str, action: str) -> None:
        """What is neither of an organization, a user nor a session is other, with its whole name."""
        assert (await run.send({"type": name, "data": {}})).status_code == 200
        (event,) = run.host.auth_events
        assert (event.kind, event.action) == (kind, action)

    @pytest.mark.parametrize("prefix", ["svix", "webhook"])
    @pytest.mark.parametrize("library", [svix.webhooks.Webhook, standardwebhooks.webhooks.Webhook])
    async def test_signatures_of_both_libraries_verify(self, run: Running, library: Any, prefix: str) -> None:
        """The scheme's two spellings, each signed by its own library (§5.4)."""
        body = json.dumps(CREATED).encode()
        moment = datetime.now(UTC).replace(microsecond=0)
        headers = {
            f"{prefix}-id": "msg_1",
            f"{prefix}-timestamp": str(int(moment.timestamp())),
            f"{prefix}-signature": library(NEW).sign("msg_1", moment, body.decode()),
        }
        assert (await run.send(body, headers)).status_code == 200

    @pytest.mark.parametrize(("secret", "status"), [(NEW, 200), (OLD, 200), (OTHER, 401)])
    async def test_secrets_can_be_rotated(self, run: Running, secret: str, status: int) -> None:
        """Both the new and the old one verify, and no third (§5.4)."""
        assert (await run.send(secret=secret)).status_code == status

    async def test_one_of_several_signatures_is_enough(self, run: Running) -> None:
        """While the provider rotates, it signs with both."""
        body = json.dumps(CREATED).encode()
        headers = signed(body)
        headers["svix-signature"] = (
            f"v2,xxxx {signed(body, OTHER)['svix-signature']} {headers['svix-signature']}"
        )
        assert (await run.send(body, headers)).status_code == 200

    @pytest.mark.parametrize(("seconds", "status"), [(-310, 401), (-290, 200), (290, 200), (310, 401)])
    async def test_five_minutes_both_ways(self, run: Running, seconds: int, status: int) -> None:
        """A replay is refused, and so is what comes from the future (§8)."""
        while True:
            before = time.time()
            answer = await run.send(at=before + seconds)
            if time.time() - before < 5:
                break  # otherwise the machine was busy, and the stamp ten seconds from the bound is another
        assert answer.status_code == status

    @pytest.mark.parametrize(
        "change",
        [
            {"svix-id": None},
            {"svix-timestamp": None},
            {"svix-signature": None},
            {"svix-id": ""},
            {"svix-id": "msg_2"},
            {"svix-id": "msg_é"},
            {"svix-id": "m" * 201},
            {"svix-timestamp": ""},
            {"svix-timestamp": "now"},
            {"svix-timestamp": "nan"},
            {"svix-timestamp": "1e9"},
            {"svix-timestamp": "-1"},
            {"svix-timestamp": "9" * 400},
            {"svix-signature": ""},
            {"svix-signature": "v1"},
            {"svix-signature": "v1,"},
            {"svix-signature": "v1,,"},
            {"svix-signature": ","},
            {"svix-signature": "v1,é"},
            {"svix-signature": "v1,%%%"},
            {"svix-signature": "v1a,AAAA"},
            {"svix-signature": "v1,AAAA " * 500},
        ],
    )
    async def test_malformed_headers_are_refused(self, run: Running, change: dict[str, str | None]) -> None:
        """Each is a 401, and the host hears nothing."""
        body = json.dumps(CREATED).encode()
        headers = {
            name: value.encode("latin-1")
            for name, value in {**signed(body), **change}.items()
            if value is not None
        }
        answer = await run.client.post("/webhooks/auth", content=body, headers=[*headers.items()])  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
        assert run.host.auth_events == []

    @given(st.binary(), st.text(), st.text(), st.text())
    def test_no_input_is_an_error(self, body: bytes, event_id: str, timestamp: str, signature: str) -> None:
        """Whatever the bytes: not authentic."""
        headers = {"svix-id": event_id, "svix-timestamp": timestamp, "svix-signature": signature}
        with pytest.raises(NotAuthentic):
            Verifier([NEW]).verify(headers, body)

    @given(st.text('{}[]":,0123456789 aetypd.\\u\x00') | st.text())
    def test_any_signed_text_is_understood_or_refused(self, body: str) -> None:
        """What is signed but is no event is told apart."""
        with contextlib.suppress(EventInvalid, UnicodeEncodeError):
            Verifier([NEW]).verify(signed(body.encode()), body.encode())

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"7",
            b"{}",
            b'{"type":7,"data":{}}',
            b'{"type":"","data":{}}',
            b'{"type":"user.created"}',
            b'{"type":"user.created","data":[]}',
            b"[" * 100_000,
            b'{"type":"user.created","type":"user.deleted","data":{}}',
            b'{"type":"user.created","data":{"x":NaN}}',
            b'{"type":"user.created","data":{"x":"\\ud800"}}',
            b'\xef\xbb\xbf{"type":"user.created","data":{}}',
            json.dumps({"type": "x" * 201, "data": {}}).encode(),
        ],
    )
    async def test_what_is_signed_but_no_event_is_a_mistake(self, run: Running, body: bytes) -> None:
        """400, and nothing is noted."""
        answer = await run.send(body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")

    async def test_bytes_that_are_no_text_are_refused(self, run: Running) -> None:
        """The scheme signs text."""
        answer = await run.send(b"\xff\xfe", signed(b"x"))
        assert answer.status_code == 401

    async def test_a_body_without_end_is_refused(self, run: Running) -> None:
        """More than 1 MiB is not read."""
        answer = await run.send(b"x" * (1024 * 1024 + 1))
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    async def test_without_a_secret_the_setting_is_named(self, database_url: str) -> None:
        """Nothing else is needed for it, and nothing else breaks (§5.5)."""
        actions = FlowActions.load(SmallHost(development(database_url)))
        async with actions.lifespan():
            answer = await Running(SmallHost(), actions).send()
        assert (answer.status_code, answer.json()["code"]) == (503, "not_configured")
        assert "AUTH_WEBHOOK_SIGNING_SECRET" in answer.json()["detail"]

    @pytest.mark.parametrize("form", ["{}", " {} ", "{}="])
    def test_a_secret_may_be_written_without_its_prefix_and_padding(self, form: str) -> None:
        """Providers show it in either way."""
        secret = "whsec_" + base64.b64encode(b"s" * 16).decode()
        for text_ in (
            secret,
            secret.removeprefix("whsec_"),
            secret.rstrip("="),
            secret.removeprefix("whsec_").rstrip("="),
        ):
            assert read_settings({"AUTH_WEBHOOK_SIGNING_SECRET": form.format(text_)}).auth_secrets == (secret,)

    @pytest.mark.parametrize("secret", ["whsec_é", "not base64!", "whsec_AAAA,%%%", "whsec_=", "A"])
    def test_a_secret_that_is_none_is_told_at_start(self, secret: str) -> None:
        """By the setting's name, and without the secret."""
        message = "these settings cannot be used: AUTH_WEBHOOK_SIGNING_SECRET must be secrets such as whsec_…"
        with pytest.raises(SettingsInvalid, match=message):
            read_settings({"AUTH_WEBHOOK_SIGNING_SECRET": secret})


class TestRefusals:
    """The log says why a request was refused; the answer does not."""

    @pytest.mark.parametrize(
        ("change", "at", "secret", "said"),
        [
            ({"svix-id": None, "svix-signature": None}, 0, NEW, "svix-id and svix-signature missing"),
            ({"svix-timestamp": "now"}, 0, NEW, "the id or the timestamp does not have the scheme's form"),
            ({"svix-id": "é"}, 0, NEW, "the id or the timestamp does not have the scheme's form"),
            (
                {},
                -4000,
                OLD,
                "s in the past, more than five minutes; the signature fits: compare this machine's clock",
            ),
            (
                {},
                4000,
                NEW,
                "s in the future, more than five minutes; the signature fits: compare this machine's clock",
            ),
            ({}, -4000, OTHER, "s in the past, more than five minutes; the signature does not fit either"),
            ({}, 0, OTHER, "the signature does not fit any of the 2 secrets of AUTH_WEBHOOK_SIGNING_SECRET"),
            ({"svix-signature": "v1,é"}, 0, NEW, "the signature does not fit any of the 2 secrets"),
        ],
    )
    async def test_each_cause_is_logged_and_none_is_told(
        self,
        run: Running,
        change: dict[str, str | None],
        at: int,
        secret: str,
        said: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A wrong secret and a clock that is off are told apart, and no secret or signature is written."""
        body = json.dumps(CREATED).encode()
        headers = {**signed(body, secret, at=time.time() + at), **change}
        signature = str(headers["svix-signature"])
        sent = [(name, value.encode("latin-1")) for name, value in headers.items() if value is not None]
        answer = await run.client.post("/webhooks/auth", content=body, headers=sent)  # type: ignore[arg-type]
        assert answer.json()["detail"] == "The signature is missing, wrong or too old."
        (line,) = [record.getMessage() for record in caplog.records if record.name == "flowactions.auth_events"]
        assert line.startswith("POST /webhooks/auth refused: ")
        assert said in line
        seconds = re.search(r"(\d+) s in", line)
        assert seconds is None or abs(int(seconds[1]) - 4000) < 60
        for value in (signature, NEW, OLD, OTHER):
            assert value not in line
            assert value.removeprefix("whsec_") not in line

    async def test_strangers_cannot_fill_the_log(self, run: Running, caplog: pytest.LogCaptureFixture) -> None:
        """Of a hundred refusals for one cause, one is a line; another cause is another."""
        for _ in range(100):
            assert (await run.send(headers={})).status_code == 401
        assert (await run.send(secret=OTHER)).status_code == 401
        assert len([record for record in caplog.records if record.name == "flowactions.auth_events"]) == 2

    def test_what_was_not_said_is_counted(self, caplog: pytest.LogCaptureFixture) -> None:
        """A minute later, the next line says how many there were."""
        times = [0.0, 1.0, 59.9, 60.0, 61.0, 500.0, 600.0]
        log = RefusalLog("flowactions.auth_events", "POST /x", iter(times).__next__)
        for _ in times:
            log.record(NotAuthentic("signature", "no fit"))
        assert [record.getMessage() for record in caplog.records] == [
            "POST /x refused: no fit",
            "POST /x refused: no fit (2 more for this cause since the last line)",
            "POST /x refused: no fit (1 more for this cause since the last line)",
            "POST /x refused: no fit",
        ]


class TestOnce:
    async def test_a_redelivery_is_acknowledged(self, run: Running) -> None:
        """By its id, whatever else it says; another id is another event (§4.4)."""
        assert [(await run.send()).json()["data"]["duplicate"] for _ in range(3)] == [False, True, True]
        assert (await run.send({"type": "user.deleted", "data": {}})).json()["data"]["duplicate"] is True
        assert (await run.send(event_id="msg_2")).json()["data"]["duplicate"] is False
        assert [event.event_id for event in run.host.auth_events] == ["msg_1", "msg_2"]

    async def test_fifty_at_a_time_call_the_handler_once(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The others wait for the first one's transaction."""
        calls: list[str] = []

        async def slow(event: AuthEvent) -> None:
            calls.append(event.event_id)
            await asyncio.sleep(0.3)

        monkeypatch.setattr(run.host, "auth_event", slow)
        answers = await asyncio.gather(*(run.send() for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert sorted(answer.json()["data"]["duplicate"] for answer in answers) == [False] + [True] * 49
        assert calls == ["msg_1"]

    async def test_a_handler_that_fails_leaves_nothing_behind(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """500, nothing of its message gets out, and the redelivery is handled (§4.4)."""
        handle = run.host.auth_event
        for error in (RuntimeError("the host's own secret"), TimeoutError()):

            async def fail(_: AuthEvent, error: Exception = error) -> None:
                raise error

            monkeypatch.setattr(run.host, "auth_event", fail)
            answer = await run.send()
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
            assert "secret" not in answer.text
        monkeypatch.setattr(run.host, "auth_event", handle)
        assert (await run.send()).json()["data"]["duplicate"] is False

    async def test_a_handler_that_hangs_is_ended(self, run: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        """It holds a transaction open, so it may not take for ever."""
        monkeypatch.setattr("flowactions_plugin.inbound.auth_events.HANDLER_SECONDS", 0.1)

        async def hang(_: AuthEvent) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(run.host, "auth_event", hang)
        assert (await run.send()).status_code == 500
        monkeypatch.undo()
        assert (await run.send()).json()["data"]["duplicate"] is False

    async def test_a_database_that_is_away_is_a_503(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the provider sends it again."""

        async def away(*_: Any) -> None:
            raise StorageUnavailable("the database failed: it is away")

        monkeypatch.setattr("flowactions_plugin.inbound.store.record", away)
        answer = await run.send()
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert "retry-after" in answer.headers

    async def test_what_the_handler_writes_is_one_with_the_note(
        self, tmp_path: Path, postgres_url: str
    ) -> None:
        """With a shared engine, both are there or neither is, on both databases."""
        for url in (f"sqlite:///{tmp_path / 'shared.db'}", postgres_url):
            engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
            async with engine.begin() as connection:
                await connection.execute(text("CREATE TABLE accounts (id TEXT PRIMARY KEY)"))
            settings = {"AUTH_WEBHOOK_SIGNING_SECRET": NEW, "FLOWACTIONS_HOST_WORKER": "off"}
            host = WritingHost(settings, database=engine)
            actions = FlowActions.load(host)
            async with actions.lifespan():
                run = Running(host, actions)
                host.fails = True
                assert (await run.send()).status_code == 500
                assert await written(engine) == (0, 0)
                host.fails = False
                assert (await run.send()).status_code == 200
                assert await written(engine) == (1, 1)
                assert (await run.send()).json()["data"]["duplicate"] is True
            await engine.dispose()


class WritingHost(SmallHost):
    """Keeps accounts in the database that it shares."""

    fails = False

    async def auth_event(self, event: AuthEvent) -> None:
        assert event.transaction is not None
        await event.transaction.execute(
            text("INSERT INTO accounts (id) VALUES (:id)"), {"id": event.data["id"]}
        )
        if self.fails:
            raise RuntimeError("after the write")


async def written(engine: AsyncEngine) -> tuple[int, ...]:
    async with engine.connect() as connection:
        query = text("SELECT (SELECT count(*) FROM accounts), count(*) FROM flowactions_inbound_events")
        return tuple((await connection.execute(query)).one())


class TestOrganizationDeleted:
    async def test_its_chat_connection_goes_with_it(
        self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody else's, only when the host has handled it, and its token is revoked then (§4.4)."""
        monkeypatch.chdir(tmp_path)
        deleted = {"type": "organization.deleted", "data": {"id": "acme", "deleted": True}}
        async with chat_host(database_url, AUTH_WEBHOOK_SIGNING_SECRET=NEW) as chat:
            await chat.connect()
            chat.sign_in("globex")
            await chat.connect(workspace="T0GLOBEX")
            run = Running(chat.host, chat.actions)

            async def fail(_: AuthEvent) -> None:
                raise RuntimeError

            with monkeypatch.context() as patched:
                patched.setattr(chat.host, "auth_event", fail)
                assert (await run.send(deleted)).status_code == 500
            chat.sign_in("acme")
            assert (await chat.card())["status"] == "active"
            for event in (deleted, {"type": "organization.deleted", "data": {"id": ["acme"]}}):
                assert (await run.send(event, event_id=f"msg_{len(str(event))}")).status_code == 200
            assert await chat.card() is None
            acme, globex = chat.provider.state.workspaces
            assert not chat.provider.state.is_installed(acme)
            assert chat.provider.state.is_installed(globex)
            chat.sign_in("globex")
            assert (await chat.card())["status"] == "active"

    async def test_without_chat_settings_the_row_goes_all_the_same(self, run: Running) -> None:
        """An organization that was deleted leaves no token behind."""
        database = services_of(run.host)._database
        async with database.write() as connection:
            await connection.execute(
                text(
                    "INSERT INTO flowactions_chat_connections (organization_id, team_id, team_name, bot_user_id,"
                    " app_id, scopes, installed_by_id, installed_by_name, installed_at, status, sealed_token)"
                    " VALUES ('acme', 't', 't', 'b', '', '', 'u', 'u', 1, 'active', 'x')"
                )
            )
        assert (await run.send({"type": "organization.deleted", "data": {"id": "acme"}})).status_code == 200

        async def gone() -> bool:
            async with database.read() as connection:
                query = text("SELECT count(*) FROM flowactions_chat_connections")
                return bool((await connection.execute(query)).scalar_one() == 0)

        await until(gone)
