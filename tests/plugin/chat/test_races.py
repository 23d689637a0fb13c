"""Installs, disconnections and revocations that cross each other."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import svix.webhooks
from sqlalchemy import text

from flowactions_conformance.chat_provider import Fault, Gate, Token, Workspace, sample_workspace
from flowactions_hookspecs import AuthEvent
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage.database import Database
from tests.chatting import ChatHost, chat_host
from tests.support import services_of

CONNECTION = "/integrations/chat/connection"
SECRET = "whsec_" + base64.b64encode(b"s" * 24).decode()


@pytest.fixture
async def run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    monkeypatch.chdir(tmp_path)
    workspaces = [sample_workspace(name, f"T0{name.upper()}") for name in ("Acme", "Globex", "Initech")]
    async with chat_host(database_url, workspaces, AUTH_WEBHOOK_SIGNING_SECRET=SECRET) as running:
        yield running


def gate(run: ChatHost, method: str) -> Gate:
    """Have the provider hold the next call of a method before it does what it is asked for."""
    held = Gate()
    run.provider.faults[method].append(Fault(passes=True, gate=held))
    return held


def token_of(run: ChatHost, workspace: Workspace) -> Token:
    return run.provider.state.tokens_of(workspace)[-1]


async def is_truthful(run: ChatHost) -> bool:
    """Tell whether the card says of the token what the provider does."""
    card = await run.card()
    workspace = next(each for each in run.provider.state.workspaces if each.id == card["workspace"]["id"])
    return bool((card["status"] == "active") == run.provider.state.is_installed(workspace))


class TestDisconnecting:
    async def test_an_install_during_a_disconnection_is_kept(self, run: ChatHost) -> None:
        """A disconnection that waits for the provider removes only the installation that it read."""
        await run.connect()
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        assert await run.card() is None
        assert await run.connect(workspace="T0GLOBEX") == {"chat": "connected"}
        held.opened.set()
        assert (await disconnecting).status_code == 204
        card = await run.card()
        assert (card["workspace"]["name"], card["status"]) == ("Globex", "active")
        assert (await run.message()).status == "sent"
        assert not run.provider.state.is_installed(run.provider.state.workspaces[0])

    async def test_an_install_with_a_token_that_is_being_revoked_is_marked_revoked(self, run: ChatHost) -> None:
        """The provider gave it the same token: the connection is kept, and not shown as active."""
        await run.connect()
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        assert await run.connect() == {"chat": "connected"}
        held.opened.set()
        assert (await disconnecting).status_code == 204
        card = await run.card()
        assert (card["status"], card["statusReason"]) == ("revoked", "token_revoked")
        assert "Reconnect" in card["advice"]
        assert await run.connect() == {"chat": "connected"}
        assert (await run.card())["status"] == "active"
        assert (await run.message()).status == "sent"

    async def test_an_install_that_is_stored_after_the_revocation_fails(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its token worked when it was tested, and not when it was stored."""
        await run.connect()
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        replace, before_storing = ConnectionStore.replace, Gate()

        async def late(self: ConnectionStore, stored: StoredConnection) -> Any:
            await before_storing.passed()
            return await replace(self, stored)

        monkeypatch.setattr(ConnectionStore, "replace", late)
        connecting = asyncio.create_task(run.connect())
        await before_storing.reached.wait()
        held.opened.set()
        assert (await disconnecting).status_code == 204
        before_storing.opened.set()
        assert await connecting == {"chat": "error", "reason": "token_revoked"}
        assert (await run.card())["status"] == "revoked"

    async def test_a_token_that_is_in_use_again_is_not_revoked(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An install between the removal and the revocation keeps its token."""
        await run.connect()
        pop = ConnectionStore.pop

        async def slow(self: ConnectionStore, *given: Any) -> Any:
            taken = await pop(self, *given)
            assert await run.connect() == {"chat": "connected"}
            return taken

        with monkeypatch.context() as patched:
            patched.setattr(ConnectionStore, "pop", slow)
            assert (await run.browser.delete(CONNECTION)).status_code == 204
        assert "auth.revoke" not in run.provider.calls
        assert (await run.card())["status"] == "active"
        assert (await run.message()).status == "sent"

    async def test_a_revocation_without_an_answer_is_verified(self, run: ChatHost) -> None:
        """The install that finished meanwhile is marked as revoked."""
        await run.connect()
        held = Gate()
        run.provider.faults["auth.revoke"].append(Fault(503, gate=held))
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        await run.connect()
        token_of(run, run.provider.state.workspaces[0]).dead = "account_inactive"
        held.opened.set()
        assert (await disconnecting).status_code == 204
        assert (await run.card())["statusReason"] == "account_inactive"

    @pytest.mark.parametrize("answer", [Fault(503), Fault(429), Fault(0)])
    async def test_a_failed_check_does_not_revoke_a_connection(self, run: ChatHost, answer: Fault) -> None:
        """Only the provider's answer does."""
        await run.connect()
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        token_of(run, run.provider.state.workspaces[0]).dead = "token_revoked"  # so that another is given
        assert await run.connect() == {"chat": "connected"}
        run.provider.faults["auth.test"].append(answer)
        held.opened.set()
        assert (await disconnecting).status_code == 204
        assert (await run.card())["status"] == "active"
        assert (await run.message()).status == "sent"


class TestReplacing:
    async def test_reconnecting_the_former_workspace_during_its_revocation_is_marked_revoked(
        self, run: ChatHost
    ) -> None:
        """The provider gave the token that was being revoked."""
        await run.connect()
        held = gate(run, "auth.revoke")
        away = asyncio.create_task(run.connect(workspace="T0GLOBEX"))
        await held.reached.wait()
        back = asyncio.create_task(run.connect())
        await asyncio.wait({back})
        held.opened.set()
        assert await away == {"chat": "error", "reason": "token_revoked"}  # by the install that came after it
        assert (await run.card())["workspace"]["name"] == "Acme"
        assert await is_truthful(run)

    async def test_every_replaced_token_is_revoked(self, run: ChatHost) -> None:
        """Of two concurrent installs, each revokes the one that it replaced, and one is kept."""
        await run.connect()
        await asyncio.gather(run.connect(workspace="T0GLOBEX"), run.connect(workspace="T0INITECH"))
        card = await run.card()
        installed = [each for each in run.provider.state.workspaces if run.provider.state.is_installed(each)]
        assert [workspace.id for workspace in installed] == [card["workspace"]["id"]]
        assert (await run.message()).status == "sent"

    async def test_two_concurrent_first_installs_leave_one_token(self, run: ChatHost) -> None:
        """There was nothing to replace when they began."""
        await asyncio.gather(run.connect(workspace="T0GLOBEX"), run.connect(workspace="T0INITECH"))
        installed = [each for each in run.provider.state.workspaces if run.provider.state.is_installed(each)]
        assert [workspace.id for workspace in installed] == [(await run.card())["workspace"]["id"]]

    async def test_a_late_result_does_not_change_the_next_installation(
        self, run: ChatHost, database_url: str
    ) -> None:
        """Revoked, or lacking a scope: stored only while the installation is the same."""
        await run.connect()
        store = ConnectionStore(services_of(run.host)._database)
        earlier = await store.get("acme")
        assert earlier is not None
        await run.connect()
        settings = read_settings({"FLOWACTIONS_DATABASE_URL": database_url})
        async with Database(settings.database_url) as database, database.write() as connection:
            # In the same millisecond.
            query = "UPDATE flowactions_chat_connections SET installed_at = :at"
            await connection.execute(text(query), {"at": earlier.installed_at})
        await store.revoke([earlier], "token_revoked")
        await store.change_missing_scopes(earlier, lambda _: ["chat:write"])
        card = await run.card()
        assert (card["status"], card["missingScopes"]) == ("active", [])
        present = await store.get("acme")
        assert present is not None
        await store.change_missing_scopes(present, lambda _: ["chat:write"])
        assert (await run.card())["missingScopes"] == ["chat:write"]
        await store.revoke([present], "token_revoked")
        assert (await run.card())["status"] == "revoked"


class TestOrganizationDeleted:
    EVENT = json.dumps({"type": "organization.deleted", "data": {"id": "acme"}}).encode()

    async def send(self, run: ChatHost) -> httpx.Response:
        now = datetime.now(UTC)
        headers = {
            "svix-id": "msg_1",
            "svix-timestamp": str(int(now.timestamp())),
            "svix-signature": svix.webhooks.Webhook(SECRET).sign("msg_1", now, self.EVENT.decode()),
        }
        async with run.new_browser() as browser:
            return await browser.post("/webhooks/auth", content=self.EVENT, headers=headers)

    async def test_the_token_of_a_deleted_organization_is_revoked_after_the_commit(
        self, run: ChatHost, database_url: str
    ) -> None:
        """While the provider is called, the connection is already deleted."""
        await run.connect()
        held = gate(run, "auth.revoke")
        sending = asyncio.create_task(self.send(run))
        await asyncio.wait(
            {asyncio.ensure_future(held.reached.wait()), sending}, return_when=asyncio.FIRST_COMPLETED
        )
        assert held.reached.is_set()
        settings = read_settings({"FLOWACTIONS_DATABASE_URL": database_url})
        async with Database(settings.database_url) as database, database.read() as connection:
            query = (
                "SELECT (SELECT count(*) FROM flowactions_chat_connections),"
                " (SELECT count(*) FROM flowactions_inbound_events)"
            )
            assert tuple((await connection.execute(text(query))).one()) == (0, 1)
        held.opened.set()
        assert (await sending).status_code == 200
        assert not run.provider.state.is_installed(run.provider.state.workspaces[0])

    async def test_a_rolled_back_deletion_does_not_revoke_the_token(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the handler fails, the provider is not called."""
        await run.connect()

        async def fail(_: AuthEvent) -> None:
            raise RuntimeError

        with monkeypatch.context() as patched:
            patched.setattr(run.host, "auth_event", fail)
            assert (await self.send(run)).status_code == 500
        assert "auth.revoke" not in run.provider.calls
        assert (await run.message()).status == "sent"
        assert (await self.send(run)).status_code == 200
        assert run.provider.calls.count("auth.revoke") == 1
