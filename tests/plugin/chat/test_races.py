"""Installs, disconnections and revocations that cross each other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from itertools import permutations
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from flowactions_conformance.chat_provider import Fault, Gate, Token, Workspace, sample_workspace
from flowactions_hookspecs import AuthEvent
from flowactions_plugin.chat.connections import TURN_SECONDS
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.auth_provider import NEW, signed
from tests.chatting import ChatHost, chat_host
from tests.outages import waiting_for_locks
from tests.support import services_of
from tests.waiting import until

CONNECTION = "/integrations/chat/connection"


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[ChatHost]:
    workspaces = [sample_workspace(name, f"T{name.upper():0>8}") for name in ("Acme", "Globex", "Initech")]
    async with chat_host(database_url, workspaces, AUTH_WEBHOOK_SIGNING_SECRET=NEW) as running:
        yield running


def gate(run: ChatHost, method: str) -> Gate:
    """Have the provider hold the next call of a method before it does what it is asked for."""
    held = Gate()
    run.provider.faults[method].append(Fault(passes=True, gate=held))
    return held


def token_of(run: ChatHost, workspace: Workspace) -> Token:
    return run.provider.state.tokens_of(workspace)[-1]


def store_of(run: ChatHost) -> ConnectionStore:
    return ConnectionStore(services_of(run.host)._database)


def present(stored: StoredConnection | None) -> StoredConnection:
    assert stored is not None
    return stored


async def stands(run: ChatHost) -> str:
    """Give the workspace that is connected: its token works, and it is the only one."""
    card = await run.card()
    assert card["status"] == "active"
    installed = [each.id for each in run.provider.state.workspaces if run.provider.state.is_installed(each)]
    assert installed == [card["workspace"]["id"]]
    assert (await run.message()).status == "sent"
    return installed[0]


class TestDisconnecting:
    async def test_an_install_during_a_disconnection_is_kept(self, run: ChatHost) -> None:
        """A disconnection that waits for the provider removes only the installation that it read."""
        await run.connect()
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        assert await run.card() is None
        assert await run.connect(workspace="T00GLOBEX") == {"chat": "connected"}
        held.opened.set()
        assert (await disconnecting).status_code == 204
        card = await run.card()
        assert (card["workspace"]["name"], card["status"]) == ("Globex", "active")
        assert (await run.message()).status == "sent"
        assert not run.provider.state.is_installed(run.provider.state.workspaces[0])

    async def test_an_install_waits_for_a_revocation_of_its_token_and_is_refused(self, run: ChatHost) -> None:
        """The provider gave it the same token: it is told so, and nothing is stored."""
        await run.connect()
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        connecting = asyncio.create_task(run.connect())
        await until(lambda: run.provider.calls.count("auth.test") == 3)  # two of the first install
        held.opened.set()
        assert (await disconnecting).status_code == 204
        assert await connecting == {"chat": "error", "reason": "token_revoked"}
        assert await run.card() is None
        assert await run.connect() == {"chat": "connected"}
        assert (await run.message()).status == "sent"

    async def test_a_disconnection_during_an_install_leaves_its_token(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It waits until the install is stored, and finds the workspace in use."""
        await run.connect()
        replace, before_storing = ConnectionStore.replace, Gate()

        async def late(self: ConnectionStore, *given: Any) -> Any:
            await before_storing.passed()
            return await replace(self, *given)

        monkeypatch.setattr(ConnectionStore, "replace", late)
        connecting = asyncio.create_task(run.connect())
        await before_storing.reached.wait()
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))

        async def removed() -> bool:
            return await run.card() is None

        await until(removed)
        before_storing.opened.set()
        assert (await disconnecting).status_code == 204
        assert await connecting == {"chat": "connected"}
        assert "auth.revoke" not in run.provider.calls
        assert (await run.message()).status == "sent"

    async def test_a_token_that_is_in_use_again_is_not_revoked(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An install between the removal and the revocation keeps its token."""
        await run.connect()
        pop = ConnectionStore.pop

        async def slow(self: ConnectionStore, *given: Any, **named: Any) -> Any:
            taken = await pop(self, *given, **named)
            assert await run.connect() == {"chat": "connected"}
            return taken

        with monkeypatch.context() as patched:
            patched.setattr(ConnectionStore, "pop", slow)
            assert (await run.browser.delete(CONNECTION)).status_code == 204
        assert "auth.revoke" not in run.provider.calls
        assert (await run.card())["status"] == "active"
        assert (await run.message()).status == "sent"

    async def test_a_revocation_without_an_answer_is_verified(self, run: ChatHost) -> None:
        """A connection that was stored meanwhile, without a turn, is marked as revoked."""
        await run.connect()
        stored = await store_of(run).get("acme")
        held = Gate()
        run.provider.faults["auth.revoke"].append(Fault(503, gate=held))
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        assert await store_of(run).replace(present(stored), None) is None
        token_of(run, run.provider.state.workspaces[0]).dead = "account_inactive"
        held.opened.set()
        assert (await disconnecting).status_code == 204
        assert (await run.card())["statusReason"] == "account_inactive"

    async def test_a_failed_check_does_not_revoke_a_connection(self, run: ChatHost) -> None:
        """Only the provider's answer does."""
        await run.connect()
        stored = await store_of(run).get("acme")
        held = gate(run, "auth.revoke")
        disconnecting = asyncio.create_task(run.browser.delete(CONNECTION))
        await held.reached.wait()
        assert await store_of(run).replace(present(stored), None) is None
        run.provider.faults["auth.test"].append(Fault(503))
        held.opened.set()
        assert (await disconnecting).status_code == 204
        assert (await run.card())["status"] == "active"


class TestReplacing:
    async def test_reconnecting_the_former_workspace_during_its_revocation_is_refused(
        self, run: ChatHost
    ) -> None:
        """The provider gave it the token that was being revoked: it changes nothing, and who came first stands."""
        await run.connect()
        held = gate(run, "auth.revoke")
        away = asyncio.create_task(run.connect(workspace="T00GLOBEX"))
        await held.reached.wait()
        tested = run.provider.calls.count("auth.test")
        back = asyncio.create_task(run.connect())
        await until(lambda: run.provider.calls.count("auth.test") == tested + 1)
        held.opened.set()
        assert await away == {"chat": "connected"}
        assert await back == {"chat": "error", "reason": "token_revoked"}
        assert await stands(run) == "T00GLOBEX"

    async def test_an_install_that_is_replaced_before_its_answer_says_so(self, run: ChatHost) -> None:
        """While it revokes the former token, another workspace is connected: that one stands."""
        await run.connect()
        held = gate(run, "auth.revoke")
        first = asyncio.create_task(run.connect(workspace="T00GLOBEX"))
        await held.reached.wait()
        assert await run.connect(workspace="T0INITECH") == {"chat": "connected"}
        held.opened.set()
        assert await first == {"chat": "error", "reason": "connected_meanwhile"}
        assert await stands(run) == "T0INITECH"

    async def test_an_install_that_loses_revokes_its_own_token_only_then(self, run: ChatHost) -> None:
        """Another workspace was connected between its beginning and its end: nothing of that is touched."""
        held = gate(run, "oauth.v2.access")
        slow = asyncio.create_task(run.connect(workspace="T00GLOBEX"))
        await held.reached.wait()
        assert await run.connect(workspace="T0INITECH") == {"chat": "connected"}
        assert "auth.revoke" not in run.provider.calls
        held.opened.set()
        assert await slow == {"chat": "error", "reason": "connected_meanwhile"}
        assert run.provider.calls.count("auth.revoke") == 1
        assert await stands(run) == "T0INITECH"

    @pytest.mark.ci
    async def test_of_simultaneous_installs_one_stands_and_each_is_told_the_truth(self, run: ChatHost) -> None:
        """Whichever workspaces, connected before or not: one token works, and who is told connected has that workspace."""
        teams = [workspace.id for workspace in run.provider.state.workspaces]
        for installs in permutations(teams):
            callbacks = [await run.consent(await run.start(), workspace=team) for team in installs]
            begun = [gate(run, "oauth.v2.access") for _ in installs]
            ending = [asyncio.create_task(run.end(callback)) for callback in callbacks]
            # All have begun before any of them goes on: one that began later would replace what it has found.
            for each in begun:
                await each.reached.wait()
            for each in begun:
                each.opened.set()
            told = await asyncio.gather(*ending)
            standing = await stands(run)
            for team, answer in zip(installs, told, strict=True):
                if team == standing:
                    assert answer in ({"chat": "connected"}, {"chat": "error", "reason": "token_revoked"})
                else:
                    assert answer["reason"] in {"connected_meanwhile", "token_revoked"}
            assert {"chat": "connected"} in told

    async def test_every_replaced_token_is_revoked(self, run: ChatHost) -> None:
        """Of two concurrent installs, each revokes the one that it replaced, and one is kept."""
        await run.connect()
        await asyncio.gather(run.connect(workspace="T00GLOBEX"), run.connect(workspace="T0INITECH"))
        card = await run.card()
        installed = [each for each in run.provider.state.workspaces if run.provider.state.is_installed(each)]
        assert [workspace.id for workspace in installed] == [card["workspace"]["id"]]
        assert (await run.message()).status == "sent"

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
        await store.refused(earlier, "token_revoked")
        await store.change_missing_scopes(earlier, lambda _: ["chat:write"])
        card = await run.card()
        assert (card["status"], card["missingScopes"]) == ("active", [])
        present = await store.get("acme")
        assert present is not None
        await store.change_missing_scopes(present, lambda _: ["chat:write"])
        assert (await run.card())["missingScopes"] == ["chat:write"]
        await store.refused(present, "token_revoked")
        assert (await run.card())["status"] == "revoked"


async def test_a_turn_ends_with_its_holder_or_its_lease(run: ChatHost) -> None:
    """A killed process keeps nobody out for longer than its lease, and who was too slow ends nobody else's turn."""
    store = store_of(run)
    assert await store.take_turn("T1", "one", 60_000)
    assert await store.take_turn("T2", "other workspace", 60_000)
    assert not await store.take_turn("T1", "two", 60_000)
    await store.end_turn("T1", "two")
    assert not await store.take_turn("T1", "two", 60_000)
    await store.end_turn("T1", "one")
    assert await store.take_turn("T1", "two", -1)
    assert await store.take_turn("T1", "three", 60_000)
    await store.end_turn("T1", "two")
    assert not await store.take_turn("T1", "four", 60_000)


def turn_of(run: ChatHost) -> AbstractAsyncContextManager[None]:
    chat = services_of(run.host)._chat
    assert isinstance(chat, Chat)
    return chat.connections._turn("T1")


async def age_turns(run: ChatHost, seconds: float) -> None:
    """Let that much of each turn's lease be over."""
    async with services_of(run.host)._database.write() as connection:
        aged = "UPDATE flowactions_oauth_states SET expires_at = expires_at - :passed WHERE id LIKE 'turn:%'"
        await connection.execute(text(aged), {"passed": int(seconds * 1000)})


async def test_a_turn_that_takes_long_stays_its_holders(run: ChatHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is renewed: however many connections a revocation has to test, no install comes in between."""
    monkeypatch.setattr("flowactions_plugin.chat.connections.RENEW_SECONDS", 0.01)
    renewals, renew = 0, ConnectionStore.renew_turn

    async def renewing(self: ConnectionStore, *given: Any) -> bool:
        nonlocal renewals
        renewals += 1
        try:
            return await renew(self, *given)
        finally:
            await age_turns(run, TURN_SECONDS / 3)

    monkeypatch.setattr(ConnectionStore, "renew_turn", renewing)
    store = store_of(run)

    async def is_kept() -> bool:
        assert not await store.take_turn("T1", "another", 60_000)
        return renewals > 6

    async with turn_of(run):
        await until(is_kept)
    assert await store.take_turn("T1", "another", 60_000)


async def test_a_turn_that_is_lost_ends(run: ChatHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could not renew it, and finds another holder, does nothing more, and leaves the other's turn alone."""
    monkeypatch.setattr("flowactions_plugin.chat.connections.RENEW_SECONDS", 0.01)
    store, taken, renew = store_of(run), asyncio.Event(), ConnectionStore.renew_turn

    async def renewing(self: ConnectionStore, *given: Any) -> bool:
        await taken.wait()
        return await renew(self, *given)

    monkeypatch.setattr(ConnectionStore, "renew_turn", renewing)

    async def too_slow() -> None:
        async with turn_of(run):
            await age_turns(run, TURN_SECONDS + 1)
            assert await store.take_turn("T1", "another", 60_000)
            taken.set()
            await asyncio.Event().wait()

    with pytest.raises(ChatRefused, match="try again later"):
        await too_slow()
    assert not await store.take_turn("T1", "third", 60_000)


class TestOrganizationDeleted:
    EVENT = json.dumps({"type": "organization.deleted", "data": {"id": "acme"}}).encode()

    async def send(self, run: ChatHost) -> httpx.Response:
        async with run.new_browser() as browser:
            return await browser.post("/webhooks/auth", content=self.EVENT, headers=signed(self.EVENT))

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


async def test_of_two_decisions_on_what_both_have_seen_one_is_made(run: ChatHost, database_url: str) -> None:
    """With the same If-Match at the same time: two default channels, or a channel and a disconnection."""
    await run.connect()
    database = services_of(run.host)._database

    async def both_wait() -> bool:
        return await waiting_for_locks(database) == 2

    for others in ("put", "delete"):
        shown = {"if-match": (await run.browser.get(CONNECTION)).headers["etag"]}
        path = f"{CONNECTION}/default-channel"
        second = (
            run.browser.delete(CONNECTION, headers=shown)
            if others == "delete"
            else run.browser.put(path, json={"channelId": "C00RANDOM"}, headers=shown)
        )
        async with database.write() as held:
            await held.execute(text("UPDATE flowactions_chat_connections SET team_name = team_name"))
            both = asyncio.gather(
                run.browser.put(path, json={"channelId": f"C0GENERAL{others}".upper()}, headers=shown), second
            )
            if database.dialect == "postgresql":
                await until(both_wait)
        codes = [answer.status_code for answer in await both]
        # Behind a disconnection, there is nothing that could have changed.
        assert sum(code in {409, 412} for code in codes) == 1, codes
