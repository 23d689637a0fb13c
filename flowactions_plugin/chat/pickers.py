"""Pickers: search a workspace's channels or members page by page, within a time bound (§2.3)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final, NamedTuple, TypeAlias

from flowactions_plugin.chat.failures import THROTTLED, ChatRefused

ENOUGH: Final = 20
"""So many choices make an answer; the cursor leads to the rest."""

SEARCH_SECONDS: Final = 5.0
"""How long a person waits for a page at the most."""

SHORTEST_PAUSE_SECONDS: Final = 0.5
"""Before a provider that throttles is asked again, even if it names less."""

START: Final = "start"
"""The cursor of an answer that got no further than the beginning."""

FRESH_SECONDS: Final = 30.0
"""So long a page of the provider's is used again: searching while somebody types costs the provider one listing."""

CACHED_CHOICES: Final = 50_000
"""About 15 MiB."""

PAUSED: Final = "The chat provider has stopped answering: there is more."


class Choice(NamedTuple):
    """A channel or member in a picker; ``names`` are what a search looks at."""

    id: str
    label: str
    note: str | None
    names: tuple[str, ...]


class Page(NamedTuple):
    """One page of choices; ``cursor`` leads to the next, ``None`` after the last."""

    choices: Sequence[Choice]
    cursor: str | None


class Found(NamedTuple):
    """What a search found; ``notice`` says why it stopped early, ``None`` when it did not."""

    choices: Sequence[Choice]
    cursor: str | None
    notice: str | None = None


ListPage: TypeAlias = Callable[[str | None], Awaitable[Page]]


async def search(list_page: ListPage, text: str, cursor: str | None) -> Found:
    """Gather choices whose name holds ``text``, over as many of the provider's pages as it takes.

    The provider's pages may be short or empty while a cursor remains. When it throttles, it is asked again
    after the time that it names, if that is not too long. When the time is up, what was found so far is the
    answer, with the cursor to go on from.

    Args:
        list_page: asks the provider for one page.
        text: looked for regardless of case; empty finds everything.
        cursor: where to go on, ``None`` for the start.

    Raises:
        ChatRefused: the provider refused, or did not answer at all.
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
                pause = max(refusal.retry_after, SHORTEST_PAUSE_SECONDS)
                if clock() + pause < ends:
                    await asyncio.sleep(pause)
                    continue
            elif not refusal.transient or not (anything or refusal.throttled):
                raise refusal from None
            return Found(found, at or START, THROTTLED if refusal.throttled else PAUSED)
        anything = True
        found += [choice for choice in page.choices if _matches(choice, wanted)]
        at = page.cursor
        if at is None or len(found) >= ENOUGH or clock() >= ends:
            return Found(found, at)


def _matches(choice: Choice, wanted: str) -> bool:
    return any(wanted in name.casefold() for name in choice.names)


class PageCache:
    """Pages that were listed a moment ago, the oldest thrown out first.

    Args:
        timer: monotonic seconds.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._pages: OrderedDict[Hashable, tuple[float, Page]] = OrderedDict()
        self._choices = 0

    def get(self, key: Hashable) -> Page | None:
        """Returns a page that is still fresh."""
        self._drop_until(self._timer() - FRESH_SECONDS, CACHED_CHOICES)
        kept = self._pages.get(key)
        return None if kept is None else kept[1]

    def put(self, key: Hashable, page: Page) -> None:
        """Keep a page."""
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
