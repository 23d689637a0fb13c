"""Pickers: search a workspace's channels or members page by page, within a time bound."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeAlias

from flowactions_plugin.chat.failures import THROTTLED, ChatRefused

ENOUGH: Final = 20
"""The number of choices after which a search stops; the cursor continues it."""

SEARCH_SECONDS: Final = 5.0
"""The time limit of a search."""

MIN_PAUSE_SECONDS: Final = 0.5
"""The shortest pause after the provider has throttled, even if it asks for less."""

START: Final = "start"
"""The cursor of an answer that read no page."""

FRESH_SECONDS: Final = 30.0
"""How long a page is cached, so that a search while the user types reads the list once."""

CACHED_CHOICES: Final = 50_000
"""About 15 MiB."""

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

    Args:
        list_page: reads one page.
        text: compared without regard to case; empty text matches all.
        cursor: where to continue; ``None`` for the start.

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
            elif not refusal.transient or not (anything or refusal.throttled):
                raise refusal from None
            return Page(found, at or START, THROTTLED if refusal.throttled else PAUSED)
        anything = True
        found += [choice for choice in page.choices if _matches(choice, wanted)]
        at = page.cursor
        if at is None or len(found) >= ENOUGH or clock() >= ends:
            return Page(found, at)


def _matches(choice: Choice, wanted: str) -> bool:
    return wanted == choice.id.casefold() or any(wanted in name.casefold() for name in choice.names)


class PageCache:
    """A cache of pages; the oldest are removed first.

    Args:
        timer: monotonic seconds.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._pages: OrderedDict[Hashable, tuple[float, Page]] = OrderedDict()
        self._choices = 0

    def get(self, key: Hashable) -> Page | None:
        """Return a cached page; ``None`` when there is none or it is too old."""
        self._drop_until(self._timer() - FRESH_SECONDS, CACHED_CHOICES)
        kept = self._pages.get(key)
        return None if kept is None else kept[1]

    def put(self, key: Hashable, page: Page) -> None:
        """Add a page."""
        old = self._pages.pop(key, None)
        if old is not None:
            self._choices -= _weight(old[1])
        self._pages[key] = (self._timer(), page)
        self._choices += _weight(page)
        self._drop_until(self._timer() - FRESH_SECONDS, CACHED_CHOICES)

    def _drop_until(self, oldest: float, most: int) -> None:
        while self._pages:
            at, page = next(iter(self._pages.values()))
            if at >= oldest and self._choices <= most:
                return
            self._pages.popitem(last=False)
            self._choices -= _weight(page)


def _weight(page: Page) -> int:
    return len(page.choices) + 1
