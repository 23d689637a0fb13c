"""*Find*: what a text names, whether it is an id, a key, a host or an organization; and what was looked for in vain."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from litestar import Request, Response, get
from litestar.di import NamedDependency

from flowactions_plugin.clock import is_id
from flowactions_plugin.egress.destination import Destination, parse_destination
from flowactions_plugin.errors import EgressRefused, FilterInvalid
from flowactions_plugin.insights.fields import MOST_CHARACTERS
from flowactions_plugin.insights.filters import parse
from flowactions_plugin.insights.inbound import MOST_ID
from flowactions_plugin.insights.standing import NAMED_READ
from flowactions_plugin.pages.context import PageContext, read_query
from flowactions_plugin.pages.guard import Viewer
from flowactions_plugin.pages.rendering import redirect

MOST_DESTINATIONS: Final = 20
"""How many destinations are listed that have a text in their host."""

_PORT: Final = re.compile(r"^[^/?#]*:[0-9]{1,5}(?:[/?#]|$)", re.ASCII)


class Hit(NamedTuple):
    """Something that a text names.

    Attributes:
        kind: what it is, for people.
        name: its own name.
        path: of its page, below the root of the pages.
        query: of its page.
    """

    kind: str
    name: str
    path: str
    query: dict[str, str]


class Looked(NamedTuple):
    """What was looked for.

    Attributes:
        kind: what it is, for people.
        skipped: why it was not looked for; empty: it was.
    """

    kind: str
    skipped: str = ""


class Finder:
    """Looks for what one text names, as far as one person may see it.

    Args:
        context: what the pages use.
        viewer: who looks.
        text: what they have typed.

    Attributes:
        looked: what was looked for, when the search has ended.
        destination: the destination that the text can be; ``None``: it can be none.
        has_more: whether more destinations have the text in their host than are listed.
    """

    def __init__(self, context: PageContext, viewer: Viewer, text: str) -> None:
        self._context = context
        self._viewer = viewer
        self._text = text
        self.looked: list[Looked] = []
        self.destination = _destination(text)
        self.has_more = False

    async def hits(self) -> list[Hit]:
        """Return what the text names.

        Raises:
            StorageUnavailable: the database failed.
        """
        by_id = [each async for each in self._by_id()]
        return by_id or [each async for each in self._by_name()]

    async def _by_id(self) -> AsyncIterator[Hit]:
        queries, scope, row_id = self._context.insights, self._viewer.scope, self._text.lower()
        wrong = "" if is_id(row_id) else "an id has 36 characters, as in 01890a5d-ac96-774b-bcce-b302099a8057"
        self.looked.append(Looked("a delivery or a bulk action with this id", wrong))
        if wrong:
            return
        if await queries.detail(scope, row_id) is not None:
            yield Hit("Delivery", row_id, f"/deliveries/{row_id}", {})
        elif await self._context.insights.action(scope, row_id) is not None:
            yield Hit("Bulk action", row_id, f"/actions/{row_id}", {})

    async def _by_name(self) -> AsyncIterator[Hit]:
        text, scope = self._text, self._viewer.scope
        is_event = text.startswith("evt_")
        wrong = "" if is_event else "an event id begins with evt_"
        self.looked.append(Looked("deliveries of the event with this id", wrong))
        if is_event and await self._has("event-id"):
            yield Hit("Deliveries of the event", text, "/deliveries", {"event-id": text})
        self.looked.append(Looked("deliveries with this idempotency key"))
        if await self._has("key"):
            yield Hit("Deliveries with the idempotency key", text, "/deliveries", {"key": text})
        for key in await self._destinations():
            yield Hit("Deliveries to the destination", key, "/deliveries", {"destination": key})
        if not self._viewer.sees_all:
            return
        self.looked.append(Looked("deliveries of the organization with this id"))
        if await self._has("organization"):
            yield Hit("Deliveries of the organization", text, "/deliveries", {"organization": text})
        wrong = f"an id has {MOST_ID} characters at the most" if len(text) > MOST_ID else ""
        self.looked.append(Looked("an inbound event with this id", wrong))
        if not wrong:
            events = await self._context.insights.inbound(scope, text, None, 1)
            if events.rows or events.reasons:
                yield Hit("Inbound event", text, "/inbound", {"id": text})

    async def _has(self, field: str) -> bool:
        """Return whether a delivery has the text in a field that an index serves."""
        try:
            wanted = parse({field: self._text})
        except FilterInvalid:
            return False
        return bool((await self._context.insights.deliveries(self._viewer.scope, wanted, None, 1)).rows)

    async def _destinations(self) -> list[str]:
        wrong = "" if self.destination else "it is neither a host nor a URL"
        among = "that were used last" if self._viewer.sees_all else "of your organization, by name"
        kind = f"destinations with this host, among the first {NAMED_READ:,} {among}"
        self.looked.append(Looked(kind, wrong))
        if self.destination is None:
            return []
        key = self.destination.key
        place = key.partition("://")[2]
        is_url = "://" in self._text
        host = place if is_url or _PORT.search(self._text) else place.rpartition(":")[0]
        status = self._context.insights.status
        found = await status.destinations_named(self._viewer.scope, host, MOST_DESTINATIONS + 1)
        if is_url:
            return [each for each in found if each == key]
        # A part of a host is one only where no host is the whole of it.
        whole = [each for each in found if each.partition("://")[2].startswith(f"{host}:")]
        self.has_more = not whole and len(found) > MOST_DESTINATIONS
        return whole or found[:MOST_DESTINATIONS]


def _destination(text: str) -> Destination | None:
    try:
        return parse_destination(text if "://" in text else f"https://{text}")
    except EgressRefused:
        return None


@get("/find", include_in_schema=False)
async def find(
    request: Request[Any, Any, Any], viewer: NamedDependency[Viewer], context: NamedDependency[PageContext]
) -> Response[Any]:
    """Lead to the one thing that a text names; list several, and say what was looked for when there is none."""
    text = read_query(request, ("q",)).get("q", "")[:MOST_CHARACTERS]
    if not text:
        return redirect(request, "/deliveries")
    finder = Finder(context, viewer, text)
    hits = await finder.hits()
    if len(hits) == 1:
        return redirect(request, hits[0].path, **hits[0].query)
    return context.page(
        request,
        "find.html",
        text=text,
        hits=hits,
        looked=finder.looked,
        has_more=finder.has_more,
        destination=finder.destination.key if finder.destination is not None else None,
    )
