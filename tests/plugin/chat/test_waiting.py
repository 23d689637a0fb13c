"""How long a provider that throttles is waited for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_plugin.chat.calls import with_retries
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.service import Chat
from tests.chatting import JSON, chat_host
from tests.support import services_of


class TestWaiting:
    """How long a provider that throttles is waited for."""

    @pytest.mark.parametrize(
        ("asked", "waits"),
        [
            (None, [0.25, 0.5, 1.0]),
            (0.0, [0.25, 0.5, 1.0]),
            (1.0, [1.0, 1.0, 1.0]),
            (2.0, [2.0, 2.0, 2.0]),
            (3.0, [3.0, 3.0, 3.0]),
            (3.1, []),
            (86400.0, []),
            (float("inf"), []),
        ],
    )
    async def test_retry_after_of_up_to_three_seconds_is_honoured(
        self, asked: float | None, waits: list[float]
    ) -> None:
        """Exactly, or the plugin's own delays; for more there is no further attempt."""
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        async def refuse() -> str:
            raise ChatRefused("ratelimited", asked)

        with pytest.raises(ChatRefused):
            await with_retries(refuse, sleep, asyncio.get_running_loop().time() + 3600)
        assert slept == waits

    async def test_a_delay_beyond_the_deadline_is_not_waited_for(self) -> None:
        """The error is raised at once."""
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        async def refuse() -> str:
            raise ChatRefused("ratelimited", 2.0)

        with pytest.raises(ChatRefused):
            await with_retries(refuse, sleep, asyncio.get_running_loop().time() + 1.9)
        assert slept == []

    @pytest.mark.parametrize("method", ["chat.postMessage", "conversations.open"])
    async def test_the_retry_after_header_is_the_delay(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        """Two seconds, then the message is sent."""
        monkeypatch.chdir(tmp_path)
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)

        async with chat_host(f"sqlite:///{tmp_path / 'f.db'}") as run:
            await run.connect()
            messenger = cast("Chat", services_of(run.host)._chat).messenger
            monkeypatch.setattr(messenger, "_sleep", sleep)
            throttled = RATE_LIMITED._replace(headers=(("retry-after", "2"), *JSON))
            run.provider.faults[method].append(throttled)
            result = await run.message(chatActionType="dm", chatUserId="U000GRACE", chatRetryOnFailure=True)
            assert (result.status, slept) == ("sent", [2.0])
