"""Pickers: search a workspace's channels or members page by page, within a time bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeAlias

from flowactions_plugin.chat.failures import THROTTLED, UNREADABLE_ANSWER, ChatRefused

SEARCH_SECONDS: Final = 5.0
"""The time limit of a search."""

MIN_PAUSE_SECONDS: Final = 0.5
"""The shortest pause after the provider has throttled, even if it asks for less."""

START: Final = "start"
"""The cursor of an answer that read no page."""

FRESH_SECONDS: Final = 300.0
"""How long a page is kept. The provider allows 20 calls of a list in a minute: to read 50,000 members takes two and a half."""

MAX_CHOICES: Final = 100_000
"""The most that is kept in a process: about 45 MiB. An answer counts as a hundred at least."""

PAUSED: Final = "The chat provider has stopped answering: the list is incomplete."


class Choice(NamedTuple):
    """A channel or member in a picker; a search compares ``names``."""

    id: str
    label: str
    note: str | None
    names: tuple[str, ...]


class Page(NamedTuple):
    """Choices, and the cursor of the next page; ``None`` after the last. ``notice`` says why a search stopped early."""

    choices: Sequence[Choice]
    cursor: str | None
    notice: str | None = None


ListPage: TypeAlias = Callable[[str | None], Awaitable[Page]]


async def search(list_page: ListPage, text: str, cursor: str | None) -> Page:
    """Return choices whose name contains ``text``, or whose id it is (§2.3), from as many of the provider's pages as needed.

    The provider's pages may be short or empty although there are more. When the provider throttles, the search continues
    after the delay that it asks for, if there is time. At the time limit, the search returns the choices found so far and
    the cursor to continue from.

    The text is compared without regard to case; empty text matches all. Without a cursor, the search begins at the start.

    Raises:
        ChatRefused: the provider refused, or did not answer.
    """
    wanted = text.casefold().strip().lstrip("#@")
    found: list[Choice] = []
    at = None if cursor == START else cursor or None
    clock = asyncio.get_running_loop().time
    ends = clock() + SEARCH_SECONDS
    anything = False
    while True:
        await asyncio.sleep(0)  # pages that are kept are read without a wait, and others want to run
        try:
            async with asyncio.timeout_at(ends):
                page = await list_page(at)
        except (ChatRefused, TimeoutError) as exc:
            refusal = exc if isinstance(exc, ChatRefused) else ChatRefused("unreachable")
            if refusal.throttled and refusal.retry_after is not None:
                pause = max(refusal.retry_after, MIN_PAUSE_SECONDS)
                if clock() + pause < ends:
                    await asyncio.sleep(pause)
                    continue
            elif not (refusal.transient or refusal.code == UNREADABLE_ANSWER) or not (
                anything or refusal.throttled
            ):
                raise refusal from None
            return Page(found, at or START, THROTTLED if refusal.throttled else PAUSED)
        anything = True
        found += [choice for choice in page.choices if _matches(choice, wanted)]
        at = page.cursor
        if at is None or len(found) >= 20 or clock() >= ends:  # the cursor continues it
            return Page(found, at)


def _matches(choice: Choice, wanted: str) -> bool:
    return wanted == choice.id.casefold() or any(wanted in name.casefold() for name in choice.names)


class PageCache:
    """A dict of pages, each with the time until which it is kept; the oldest are removed first.

    Args:
        timer: monotonic seconds.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._kept: dict[Hashable, tuple[Page, float]] = {}

    def get(self, key: Hashable) -> tuple[Page, float] | None:
        """Return a page, and how many seconds it stays in the cache; ``None``: it is not there."""
        kept = self._kept.get(key)
        left = 0.0 if kept is None else kept[1] - self._timer()
        return None if kept is None or left <= 0 else (kept[0], left)

    def put(self, key: Hashable, page: Page, seconds: float) -> None:
        """Keep a page for a time."""
        now, kept = self._timer(), self._kept
        self._kept = {other: kept[other] for other in kept if other != key and kept[other][1] > now}
        self._kept[key] = (page, now + seconds)
        while sum(max(100, len(each.choices)) for each, _ in self._kept.values()) > MAX_CHOICES:
            del self._kept[next(iter(self._kept))]
