"""The attempts of one message: which failures are repeated, when, and for how long (§8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.provider import ChatProvider

MAX_ATTEMPTS: Final = 4
RETRY_DELAYS: Final = (0.25, 0.5, 1.0)
"""Seconds before attempts two, three and four (§8)."""

LONGEST_WAIT_SECONDS: Final = 3.0
"""A provider that asks for more is not asked again in this walk."""

SEND_SECONDS: Final = 6.0
"""The longest that a walk is held by one message: the database and all attempts together."""

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Post: TypeAlias = Callable[[], Awaitable[str]]


def seconds_from_now(seconds: float) -> float:
    """Returns a moment of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds


def retry_delay(attempt: int, refusal: ChatRefused) -> float | None:
    """Returns the seconds to wait before the next attempt, ``None`` when there is none (§8).

    Args:
        attempt: the number of the attempt that failed, counted from 1.
        refusal: why it failed.
    """
    if not refusal.transient or attempt >= MAX_ATTEMPTS:
        return None
    asked = refusal.retry_after or 0.0
    return max(RETRY_DELAYS[attempt - 1], asked) if asked <= LONGEST_WAIT_SECONDS else None


async def with_retries(attempt: Post, sleep: Sleep, until: float | None) -> str:
    """Make up to four attempts.

    Args:
        attempt: makes one.
        sleep: waits between two.
        until: a moment of the event loop's clock after which none begins; ``None`` for one attempt only.

    Raises:
        ChatRefused: why the last one failed.
    """
    number = 1
    while True:
        try:
            return await attempt()
        except ChatRefused as refusal:
            delay = None if until is None else retry_delay(number, refusal)
            # Not to hold the walk for an attempt that there is no time left for.
            if delay is None or until is None or seconds_from_now(delay) >= until:
                raise
        await sleep(delay)
        number += 1


def to_channel(provider: ChatProvider, token: str, channel: str, text: str) -> Post:
    """Make the attempt of a message to a channel."""
    return lambda: provider.post_message(token, channel, text)


def to_member(provider: ChatProvider, token: str, user: str, text: str) -> Post:
    """Make the attempt of a direct message: it opens the channel, until that has succeeded once, and posts."""
    opened: list[str] = []

    async def attempt() -> str:
        if not opened:
            opened.append(await provider.open_dm(token, user))
        return await provider.post_message(token, opened[0], text)

    return attempt
