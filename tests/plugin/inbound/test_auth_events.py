"""Events of the auth provider are handled once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text
from sqlalchemy.exc import DBAPIError

from flowactions_hookspecs import AuthEvent
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.schema import chat_connections
from tests.auth_provider import NEW, Running
from tests.chatting import chat_host
from tests.plugin.stored import a_connection
from tests.queueing import Queue
from tests.support import services_of
from tests.waiting import until


def _conflict(code: str) -> DBAPIError:
    """Make the error of a statement of the host's."""
    driver = RuntimeError()
    driver.sqlstate = code  # type: ignore[attr-defined]
    return DBAPIError("UPDATE", None, driver)


class TestOnce:
    async def test_a_redelivery_is_acknowledged(self, run: Running) -> None:
        """By its id, whatever its body; another id is another event (§4.4)."""
        assert [(await run.send()).json()["data"]["duplicate"] for _ in range(3)] == [False, True, True]
        assert (await run.send({"type": "user.deleted", "data": {}})).json()["data"]["duplicate"] is True
        assert (await run.send(event_id="msg_2")).json()["data"]["duplicate"] is False
        assert [event.event_id for event in run.host.auth_events] == ["msg_1", "msg_2"]

    async def test_fifty_concurrent_deliveries_call_the_handler_once(
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

    async def test_an_event_whose_handler_fails_is_not_recorded(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """500 without its message, and the redelivery is handled (§4.4)."""
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

    async def test_a_conflict_of_the_handlers_is_repeated(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its transaction is the plugin's own: a serialization failure in it is no failure of the host (§4.4, §8)."""
        failures = [_conflict("40001"), _conflict("40P01")]

        async def handle(_: AuthEvent) -> None:
            if failures:
                raise failures.pop()

        monkeypatch.setattr(run.host, "auth_event", handle)
        answer = await run.send()
        assert (answer.status_code, failures) == (200, [])
        assert answer.json()["data"]["duplicate"] is False

    async def test_a_handler_that_hangs_is_cancelled(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Because it holds a transaction open."""
        monkeypatch.setattr("flowactions_plugin.inbound.auth_events.HANDLER_SECONDS", 0.1)

        async def hang(_: AuthEvent) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(run.host, "auth_event", hang)
        assert (await run.send()).status_code == 500
        monkeypatch.undo()
        assert (await run.send()).json()["data"]["duplicate"] is False

    async def test_an_unreachable_database_is_a_503(
        self, run: Running, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So the provider sends the event again."""

        async def away(*_: Any) -> None:
            raise StorageUnavailable("the database failed: it is away")

        monkeypatch.setattr("flowactions_plugin.inbound.store.record", away)
        answer = await run.send()
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert "retry-after" in answer.headers


class TestOrganizationDeleted:
    async def test_a_deleted_organizations_chat_connection_is_deleted(
        self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No other one, only after the host has handled the event, and then its token is revoked (§4.4)."""
        monkeypatch.chdir(tmp_path)
        deleted = {"type": "organization.deleted", "data": {"id": "acme", "deleted": True}}
        async with chat_host(database_url, AUTH_WEBHOOK_SIGNING_SECRET=NEW) as chat:
            await chat.connect()
            chat.sign_in("globex")
            await chat.connect(workspace="T00GLOBEX")
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

    async def test_the_connection_is_deleted_also_without_chat_settings(self, run: Running) -> None:
        """No token of a deleted organization stays stored."""
        database = services_of(run.host)._database
        await Queue(database).run(insert(chat_connections).values(a_connection("acme")))
        assert (await run.send({"type": "organization.deleted", "data": {"id": "acme"}})).status_code == 200

        async def gone() -> bool:
            async with database.read() as connection:
                query = text("SELECT count(*) FROM flowactions_chat_connections")
                return bool((await connection.execute(query)).scalar_one() == 0)

        await until(gone)
