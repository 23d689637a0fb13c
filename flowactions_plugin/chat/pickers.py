"""Pickers: search a workspace's channels or members page by page, within a time bound (§2.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.provider import Choice, Page

ENOUGH: Final = 20
"""So many choices make an answer; the cursor leads to the rest."""

SEARCH_SECONDS: Final = 3.0

ListPage: TypeAlias = Callable[[str | None], Awaitable[Page]]


async def search(list_page: ListPage, text: str, cursor: str | None, timer: Callable[[], float]) -> Page:
    """Gather choices whose label or note holds ``text``, over as many of the provider's pages as it takes.

    The provider's pages may be short or empty while a cursor remains. When the time is up, or the provider
    throttles after the first page, what was found so far is the answer, with the cursor to go on from.

    Args:
        list_page: asks the provider for one page.
        text: looked for regardless of case; empty finds everything.
        cursor: where to go on, ``None`` for the start.
        timer: monotonic seconds.

    Raises:
        ChatRefused: the provider refused the first page.
    """
    wanted = text.casefold().strip().lstrip("#@")
    found: list[Choice] = []
    started = timer()
    first = True
    while True:
        try:
            page = await list_page(cursor)
        except ChatRefused as refusal:
            if first or not refusal.transient:
                raise
            return Page(found, cursor)
        first = False
        found += [
            choice for choice in page.choices if wanted in f"{choice.label} {choice.note or ''}".casefold()
        ]
        cursor = page.cursor
        if cursor is None or len(found) >= ENOUGH or timer() - started >= SEARCH_SECONDS:
            return Page(found, cursor)
