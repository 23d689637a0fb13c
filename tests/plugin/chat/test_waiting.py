"""How long a provider that throttles is waited for."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from flowactions_conformance.chat_provider import Fault
from flowactions_plugin.chat.calls import SEND_SECONDS, Turns, seconds_from_now
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.messenger import UNKNOWN_CHANNEL
from tests.chatting import ChatHost, chat_host, refusing
from tests.waiting import SAFETY_SECONDS

CHANNEL = ("T0000ACME", "C00ORDERS")
MEMBER = {"chatActionType": "dm", "chatUserId": "U000GRACE"}


async def waited(refusal: ChatRefused, jitter: float = 0.0, seconds: float = 3600) -> list[float]:
    """Make attempts that are all refused, for so long at the most; give the delays between them."""
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        slept.append(delay)

    async def refuse() -> str:
        raise refusal

    with pytest.raises(ChatRefused):
        await Turns(sleep, lambda: jitter).attempts(refuse, CHANNEL, seconds_from_now(seconds))
    return slept


class TestWaiting:
    """How long a provider that throttles is waited for."""

    @pytest.mark.parametrize(
        ("asked", "waits"),
        [
            (None, [0.25, 0.5, 1.0]),
            (0.0, [0.25, 0.5, 1.0]),
            (1.0, [1.0, 1.0, 1.0]),
            (2.0, [2.0, 2.0, 2.0]),
            (1000.0, [1000.0, 1000.0, 1000.0]),
            (86400.0, []),
            (float("inf"), []),
        ],
    )
    async def test_retry_after_is_honoured_where_there_is_time(
        self, asked: float | None, waits: list[float]
    ) -> None:
        """Exactly, or the plugin's own delays; for more than is left there is no further attempt."""
        assert await waited(ChatRefused("ratelimited", asked)) == pytest.approx(waits)

    async def test_delays_differ(self) -> None:
        """By up to a quarter of a second, so that messages which failed together do not try again together."""
        slept = [(await waited(ChatRefused("service_unavailable"), jitter))[0] for jitter in (0.0, 0.5, 1.0)]
        assert slept == pytest.approx([0.25, 0.375, 0.5])

    async def test_a_delay_beyond_the_deadline_is_not_waited_for(self) -> None:
        """The error is raised at once."""
        assert await waited(ChatRefused("ratelimited", 2.0), seconds=1.9) == []


class Simulation:
    """Time that passes only while everybody sleeps, and a channel that takes one message a second and bursts of five."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.posted_at: list[float] = []
        self.refused = 0
        self._free_at = 0.0
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []
        monkeypatch.setattr(
            "flowactions_plugin.chat.calls.seconds_from_now", lambda seconds: self.now + seconds
        )

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, len(self.posted_at) + id(woken), woken))
        await woken.wait()

    async def post(self) -> str:
        free_at = max(self._free_at, self.now)
        if free_at - self.now >= 5:
            self.refused += 1
            raise ChatRefused("ratelimited", 1.0)
        self._free_at = free_at + 1
        self.posted_at.append(self.now)
        return "1.0"

    async def run(self, messages: Sequence[Callable[[], Awaitable[str]]]) -> list[Any]:
        running = asyncio.gather(*(message() for message in messages), return_exceptions=True)
        while not running.done():
            for _ in range(10):
                await asyncio.sleep(0)
            if self._sleepers:
                self.now, _, woken = heapq.heappop(self._sleepers)
                woken.set()
        return await running


class TestTurns:
    """A burst of messages to one channel (§8)."""

    async def test_each_process_gets_what_the_provider_allows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of 30 at once, five are sent at once and one in each further second; nobody waits in vain."""
        simulation = Simulation(monkeypatch)
        turns = Turns(simulation.sleep, lambda: 0.5)

        async def message() -> str:
            return await turns.attempts(simulation.post, CHANNEL, SEND_SECONDS)

        results = await simulation.run([message] * 30)
        refused = [each for each in results if isinstance(each, ChatRefused)]
        assert len(simulation.posted_at) == 10
        assert {each.code for each in refused} == {"ratelimited"}
        assert simulation.refused == 1
        assert simulation.now < SEND_SECONDS

    async def test_a_message_that_comes_later_waits_for_its_turn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It makes no attempt before; one to another channel does not wait."""
        simulation = Simulation(monkeypatch)
        turns = Turns(simulation.sleep, lambda: 0.0)

        async def message(channel: str = "C00ORDERS", *, late: bool = False) -> str:
            if late:
                await simulation.sleep(0.5)
            return await turns.attempts(simulation.post, ("T0000ACME", channel), simulation.now + SEND_SECONDS)

        await simulation.run([message] * 7 + [partial(message, late=True)])
        assert simulation.posted_at == [0.0] * 5 + [1.0, 2.0, 3.0]
        assert simulation.refused == 1
        simulation = Simulation(monkeypatch)
        other = Turns(simulation.sleep, lambda: 0.0)
        other._last[CHANNEL] = 5.0
        await other.attempts(simulation.post, ("T0000ACME", "C00RANDOM"), SEND_SECONDS)
        assert simulation.posted_at == [0.0]

    @pytest.mark.ci
    async def test_a_burst_is_sent_once_as_far_as_the_provider_allows(self, sqlite_url: str) -> None:
        """The author of each other message is told why it failed."""
        async with chat_host(sqlite_url) as run:
            run.provider.state.workspaces[0].limited = True
            await run.connect()
            results = await asyncio.gather(*(run.message(chatRetryOnFailure=True) for _ in range(30)))
        failed = [result for result in results if result.status == "failed"]
        assert 5 <= len(run.provider.messages) == 30 - len(failed) < 30
        said = {result.message or "" for result in failed}
        assert any("throttling" in each for each in said)
        # On a busy machine, the provider may answer some of them too late.
        assert all("throttling" in each or "did not answer" in each for each in said)


class TestDirectChannels:
    """The channel of a direct message is opened once for an install and a member."""

    @pytest.fixture
    async def run(self, sqlite_url: str) -> AsyncIterator[ChatHost]:
        async with chat_host(sqlite_url) as running:
            await running.connect()
            yield running

    async def test_sixty_messages_open_it_once(self, run: ChatHost, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also when they come together; another member's is another, and so is that of the next install."""
        for limit in ("chat.provider.CALL_SECONDS", "nodes.chat_message.SEND_SECONDS"):
            monkeypatch.setattr(f"flowactions_plugin.{limit}", SAFETY_SECONDS)
        results = await asyncio.gather(*(run.message(**MEMBER) for _ in range(60)))
        assert {result.status for result in results} == {"sent"}
        assert (await run.message(**MEMBER)).status == "sent"
        assert run.provider.calls.count("conversations.open") == 1
        await run.message(chatActionType="dm", chatUserId="U000LINUS")
        assert run.provider.calls.count("conversations.open") == 2
        await run.connect()
        assert (await run.message(**MEMBER)).status == "sent"
        assert run.provider.calls.count("conversations.open") == 3

    @pytest.mark.parametrize("code", sorted(UNKNOWN_CHANNEL))
    async def test_a_channel_that_the_provider_no_longer_knows_is_opened_once_again(
        self, run: ChatHost, code: str
    ) -> None:
        """Without retries, too; when that does not help, the message fails, and the next one opens it again."""
        await run.message(**MEMBER)
        run.provider.calls.clear()
        posts = run.provider.faults["chat.postMessage"]
        refusal = refusing(code)
        posts.append(refusal)
        assert (await run.message(**MEMBER)).status == "sent"
        once = ["chat.postMessage", "conversations.open", "chat.postMessage"]
        assert run.provider.calls == once
        run.provider.calls.clear()
        posts.extend([refusal] * 2)
        assert (await run.message(**MEMBER)).reason == "send_failed"
        assert run.provider.calls == once
        assert (await run.message(**MEMBER)).status == "sent"
        assert run.provider.calls[3:] == ["conversations.open", "chat.postMessage"]

    async def test_a_failure_is_not_remembered_and_the_number_is_bounded(
        self, run: ChatHost, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The oldest is forgotten first."""
        monkeypatch.setattr("flowactions_plugin.chat.messenger.MOST_REMEMBERED", 1)
        run.provider.faults["conversations.open"].append(Fault(503))
        for member in ("U000GRACE", "U000GRACE", "U000LINUS", "U000GRACE", "U000GRACE"):
            await run.message(chatActionType="dm", chatUserId=member)
        assert run.provider.calls.count("conversations.open") == 4
        assert len(run.provider.messages) == 4
