"""*Find*: looks up what a text names: an id, a key, a destination or an organization; and lists what was not found."""

from __future__ import annotations

from typing import Any, NamedTuple

from litestar import Response, get
from litestar.di import NamedDependency

from flowactions_plugin.clock import is_id
from flowactions_plugin.egress.destination import destination_of
from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.insights.filters import BY_NAME, MOST_CHARACTERS, Filter, value_of
from flowactions_plugin.insights.inbound import MOST_ID
from flowactions_plugin.pages.context import Visit


class Hit(NamedTuple):
    """Something that a text names: what it is, its own name, and its page below the root of the pages."""

    kind: str
    name: str
    path: str
    query: dict[str, str]


class Looked(NamedTuple):
    """What was looked for, and why it was not; empty: it was."""

    kind: str
    skipped: str


async def _look(visit: Visit, text: str, places: list[str]) -> tuple[list[Hit], list[Looked]]:
    """Return what a text names, as far as a person may see it, and what was looked for."""
    insights, scope, row_id = visit.insights, visit.scope, text.lower()
    wrong = "" if is_id(row_id) else "an id has 36 characters, as in 01890a5d-ac96-774b-bcce-b302099a8057"
    looked = [Looked("a delivery or a bulk action with this id", wrong)]
    if not wrong and await insights.delivery(scope, row_id) is not None:
        return [Hit("delivery", row_id, f"/deliveries/{row_id}", {})], looked
    if not wrong and await insights.action(scope, row_id) is not None:
        return [Hit("bulk action", row_id, f"/actions/{row_id}", {})], looked
    hits = []
    no_event = "" if text.startswith("evt_") else "an event id begins with evt_"
    no_place = "" if places else "it is neither a host nor a URL"
    searches = [
        ("event", "deliveries of the event with this id", no_event, [text]),
        ("key", "deliveries with this idempotency key", "", [text]),
        ("destination", "deliveries to this destination that failed or are among the newest", no_place, places),
    ]
    if visit.viewer.sees_all:
        searches.append(("organization", "deliveries of the organization with this id", "", [text]))
    for field, kind, wrong, values in searches:
        looked.append(Looked(kind, wrong))
        for value in () if wrong else values:
            found = await _search(visit, field, value)
            hits += [] if found is None else [Hit(kind, value, "/deliveries", {"q": str(found)})]
    if visit.viewer.sees_all:
        wrong = f"an id has {MOST_ID} characters at the most" if len(text) > MOST_ID else ""
        looked.append(Looked("an inbound event with this id", wrong))
        events = None if wrong else await insights.inbound(scope, text, None, 1)
        if events is not None and (events.rows or events.reasons):
            hits.append(Hit("inbound event", text, "/inbound", {"id": text}))
    return hits, looked


async def _search(visit: Visit, field: str, value: str) -> Filter | None:
    """Return the filter of one field, if it finds a delivery."""
    try:
        wanted = Filter.of(**{field: value_of(BY_NAME[field], value)})
    except ValueError:
        return None
    return wanted if (await visit.insights.deliveries(visit.scope, wanted, None, 1)).rows else None


def _places(text: str) -> list[str]:
    """Return the destinations that a text can name: of a host without a scheme, that of each."""
    found = []
    for url in [text] if "://" in text else [f"https://{text}", f"http://{text}"]:
        try:
            found.append(destination_of(url))
        except EgressRefused:
            continue
    return found


@get("/find")
async def find(visit: NamedDependency[Visit]) -> Response[Any]:
    """Lead to the one thing that a text names; list several, and say what was looked for when there is none."""
    text = visit.query("q").get("q", "")[:MOST_CHARACTERS]
    if not text:
        return visit.redirect("/deliveries")
    places = _places(text)
    hits, looked = await _look(visit, text, places)
    if len(hits) == 1:
        return visit.redirect(hits[0].path, **hits[0].query)
    return visit.page(
        "find.html", text=text, hits=hits, looked=looked, destination=places[0] if places else None
    )
