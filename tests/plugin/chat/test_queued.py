"""Chat messages that wait in the outbox (``FLOWACTIONS_CHAT_DELIVERY=queued``)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text

from flowactions_plugin.egress.attempt import CHAT_REFUSED
from tests.chatting import ChatHost, chat_host
from tests.support import services_of
from tests.waiting import until

QUEUED = {"FLOWACTIONS_CHAT_DELIVERY": "queued"}
CONTINUOUS = {**QUEUED, "FLOWACTIONS_DELIVERY": "continuous"}


@asynccontextmanager
async def queued_host(database_url: str, **settings: str) -> AsyncIterator[ChatHost]:
    async with chat_host(database_url, **{**CONTINUOUS, **settings}) as running:
        await running.connect()
        yield running


@pytest.fixture
async def run(database_url: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    monkeypatch.chdir(tmp_path)
    async with queued_host(database_url) as running:
        yield running


async def rows(run: ChatHost, columns: str = "*") -> list[Any]:
    database = services_of(run.host)._database
    async with database.read() as connection:
        return list((await connection.execute(text(f"SELECT {columns} FROM flowactions_outbox ORDER BY id"))).all())


def texts(run: ChatHost) -> list[tuple[str, str]]:
    return [(each.channel, each.text) for each in run.provider.messages]


class TestPosting:
    async def test_a_message_is_queued_and_posted(self, run: ChatHost, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        result = await run.message(chatMessageText="one")
        assert (result.status, result.reason) == ("queued", None)

        async def posted() -> bool:
            return texts(run) == [("#orders", "one")] and (await rows(run))[0].status == "delivered"

        await until(posted)
        print(await rows(run))
        assert "chat_message node n sent" in caplog.messages
