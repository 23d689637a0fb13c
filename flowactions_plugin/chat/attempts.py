"""Retries of one message: which failures are retried, when, and for how long (§8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.provider import ChatProvider

MAX_ATTEMPTS: Final = 4
RETRY_DELAYS: Final = (0.25, 0.5, 1.0)
"""Seconds before attempts two, three and four (§8)."""

MAX_RETRY_AFTER_SECONDS: Final = 3.0
"""When the provider asks for a longer delay, there is no further attempt in this walk."""

SEND_SECONDS: Final = 6.0
"""How long one message may delay a walk: the database and all attempts together."""

Sleep: TypeAlias = Callable[[float], Awaitable[None]]
Post: TypeAlias = Callable[[], Awaitable[str]]


def seconds_from_now(seconds: float) -> float:
    """Return a time of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds


def retry_delay(attempt: int, refusal: ChatRefused) -> float | None:
    """Return the seconds before the next attempt; ``None`` when there is none (§8).

    Args:
        attempt: the number of the attempt that failed, counted from 1.
        refusal: its error.
    """
    if not refusal.transient or attempt >= MAX_ATTEMPTS:
        return None
    asked = refusal.retry_after or 0.0
    return max(RETRY_DELAYS[attempt - 1], asked) if asked <= MAX_RETRY_AFTER_SECONDS else None


async def with_retries(attempt: Post, sleep: Sleep, until: float | None) -> str:
    """Make up to four attempts.

    Args:
        attempt: makes one attempt.
        sleep: waits between attempts.
        until: a time of the event loop's clock after which no attempt begins; ``None`` for a single attempt.

    Raises:
        ChatRefused: the last attempt failed.
    """
    number = 1
    while True:
        try:
            return await attempt()
        except ChatRefused as refusal:
            delay = None if until is None else retry_delay(number, refusal)
            # The walk does not wait for an attempt that would begin too late.
            if delay is None or until is None or seconds_from_now(delay) >= until:
                raise
        await sleep(delay)
        number += 1


def to_channel(provider: ChatProvider, token: str, channel: str, text: str) -> Post:
    """Return the attempt of a message to a channel."""
    return lambda: provider.post_message(token, channel, text)


def to_member(provider: ChatProvider, token: str, user: str, text: str) -> Post:
    """Return the attempt of a direct message: it opens the channel, unless an earlier attempt has, and posts."""
    opened: list[str] = []

    async def attempt() -> str:
        if not opened:
            opened.append(await provider.open_dm(token, user))
        return await provider.post_message(token, opened[0], text)

    return attempt
