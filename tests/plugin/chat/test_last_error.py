"""The last message that could not be sent: on the page, on the card, and never in the way of the walk (§2.2)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import Advanced, Deferred, Node
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.nodes.store import DeferredStore
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.chatting import Adopted, ChatHost, adopted, chat_host
from tests.support import a_walk, services_of
from tests.waiting import until

PAGE = "/integrations/webhooks/connections"


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[ChatHost]:
    async with chat_host(database_url) as running:
        assert await running.connect() == {"chat": "connected"}
        yield running


async def last_error(run: ChatHost) -> Any:
    return (await run.card())["lastError"]


async def forget(run: ChatHost | Adopted) -> None:
    """Let the last failure be longer ago than ten seconds, for the process and in the row."""
    services = services_of(run.actions.host)
    assert not isinstance(services._chat, Exception)
    services._chat.calls._failures.clear()
    async with services._database.write() as connection:
        await connection.execute(
            text("UPDATE flowactions_chat_connections SET last_error_at = last_error_at - 10001")
        )


async def test_a_refused_message_is_named_with_its_flow_and_node(run: ChatHost) -> None:
    """Card and page say what it was, and when; a new install begins without it."""
    assert await last_error(run) is None
    for channel, code in (("C00000OLD", "is_archived"), ("C00RANDOM", "not_in_channel")):
        assert (await run.message(chatChannelId=channel)).reason == "send_failed"

        async def recorded(code: str = code) -> bool:
            found = await last_error(run)
            return found is not None and found["code"] == code

        await until(recorded)
        found = await last_error(run)
        assert (found["flowId"], found["nodeId"]) == (a_walk().flow_id, "n")
        assert found["advice"]
        assert found["at"]
        page = (await run.browser.get(PAGE)).text
        assert code in page
        assert f"flow {a_walk().flow_id}, node n" in page
        await forget(run)
    assert (await run.card())["status"] == "active"
    assert await run.connect() == {"chat": "connected"}
    assert await last_error(run) is None


async def test_a_test_message_that_fails_has_no_flow(run: ChatHost) -> None:
    """It is shown as a test message."""
    await run.browser.put("/integrations/chat/connection/default-channel", json={"channelId": "C00000OLD"})
    sent = await run.browser.post("/integrations/chat/send-message", json={"text": "hi"})
    assert sent.json()["data"]["error"] == "is_archived"
    await until(lambda: last_error(run))
    assert (await last_error(run))["nodeId"] is None
    assert "test message" in (await run.browser.get(PAGE)).text


async def test_without_its_key_a_connection_is_not_shown_as_active(run: ChatHost, database_url: str) -> None:
    """The page says so at once, and the first message that fails stands there with flow and node."""
    other = base64.b64encode(b"k" * 32).decode()
    async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=other) as lost:
        page = (await lost.browser.get(PAGE)).text
        assert "unusable" in page
        assert "token_unreadable" in page
        assert (await lost.message()).reason == "send_failed"
        await until(lambda: last_error(lost))
        assert (await last_error(lost))["code"] == "token_unreadable"
        assert "node n" in (await lost.browser.get(PAGE)).text


async def test_a_burst_of_failures_is_written_once(run: ChatHost) -> None:
    """At most once in ten seconds for each connection, whichever process writes."""
    writes: list[Any] = []
    services = services_of(run.host)
    assert not isinstance(services._chat, Exception)
    calls = services._chat.calls
    stored = await ConnectionStore(services._database).get("acme")
    assert stored is not None
    for _ in range(50):
        calls.record_failure(stored, "is_archived", ("f", "n"))
        writes.append(len(calls._background))
    assert max(writes) == 1
    await until(lambda: last_error(run))
    # Another process, which knows of no failure.
    await ConnectionStore(services._database).record_failure(stored, "not_in_channel", "f", "n")
    assert (await last_error(run))["code"] == "is_archived"
    await forget(run)
    await ConnectionStore(services._database).record_failure(stored, "not_in_channel", "f", "n")
    assert (await last_error(run))["code"] == "not_in_channel"


async def test_it_is_written_beside_the_walk_and_not_in_its_transaction(database_url: str) -> None:
    """The node is answered while the row is locked or the database is written to; what rolls back does not take it along."""
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url)
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url):
        pass
    async with adopted(database_url, engine) as chat:
        node = Node(id="n", type="chat_message", config={"chatChannelId": "C00000OLD", "chatMessageText": "hi"})
        async with engine.connect() as connection:
            locked = "UPDATE flowactions_chat_connections SET default_channel = 'C1'"
            await connection.execute(text(locked))
            assert (await chat.actions.reach(a_walk(), node, connection)).reason == "send_failed"
            query = text("SELECT last_error FROM flowactions_chat_connections")
            assert (await connection.execute(query)).scalar_one() is None
            await connection.rollback()

        async def recorded() -> bool:
            async with engine.connect() as connection:
                return bool((await connection.execute(query)).scalar_one() == "is_archived")

        await until(recorded)
    await engine.dispose()


async def test_a_message_of_the_last_attempt_of_a_process_is_told_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deferred one, which the database did not let it read before; no connection to the provider stays open."""
    walk = a_walk(pacing=Deferred("s"))
    node = Node(id="n", type="chat_message", config={"chatChannelId": "C00RANDOM", "chatMessageText": "hi"})

    async def away(*_: Any) -> Any:
        raise StorageUnavailable("the database failed: it is away")

    async with chat_host(database_url) as run:
        assert await run.connect() == {"chat": "connected"}
        await run.actions.reach(walk, node)
        with monkeypatch.context() as patched:
            patched.setattr(DeferredStore, "find", away)
            assert await run.actions.advance(walk, "s") == Advanced(state="done")
        chat = services_of(run.host)._chat
        assert isinstance(chat, Chat)
    assert run.provider.calls.count("chat.postMessage") == 1
    assert chat.provider._session._session is None
    async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url) as database:
        stored = await ConnectionStore(database).get("acme")
    assert stored is not None
    assert stored.last_error == "not_in_channel"
