"""The pages of deliveries: the search, and one delivery."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec
from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from flowactions_plugin.clock import is_id
from flowactions_plugin.egress.attempt import UNSIGNED
from flowactions_plugin.errors import FilterInvalid
from flowactions_plugin.http.masking import MASK
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.insights.curl import commands
from flowactions_plugin.insights.filters import BY_NAME, FIELDS, Filter
from flowactions_plugin.insights.results import Counted, Page
from flowactions_plugin.operations.bulk import names_rows
from flowactions_plugin.origins import CHAT, kind_of
from flowactions_plugin.pages.charts import steps
from flowactions_plugin.pages.context import ROWS, Visit, read_filter

BODY_CHARACTERS: Final = 64 << 10
"""Of a body, on a page."""

RESENT_SHOWN: Final = 10
"""How many of the deliveries that were sent again from one are shown with it, the last ones."""

FORM: Final = tuple(field for field in FIELDS if field.label)
"""The fields of the search."""

CERTAINTIES: Final = {
    "never connected": "the receiver cannot have had it",
    "sent, no answer": "the receiver may have had it",
    "answered": "the receiver had it",
    "answered through the proxy": "the receiver had it, unless the proxy has answered itself",
}

_RESEND: Final = (("resend", "Send again"),)

OF_ONE: Final[dict[str | None, tuple[tuple[str, str], ...]]] = {
    "delivered": _RESEND,
    "dead": (("retry", "Retry"), ("delete", "Delete")),
    "pending": (("cancel", "Cancel"),),
    "retrying": (("cancel", "Cancel"),),
}
"""State → what can be done to a delivery."""

OF_MANY: Final[dict[str | None, tuple[tuple[str, str], ...]]] = {
    **OF_ONE,
    **dict.fromkeys(("waiting", "due"), OF_ONE["pending"]),
    None: (*OF_ONE["dead"], ("cancel", "Cancel"), *_RESEND),
}
"""State that is searched for → what can be done to those that are found."""

TABS: Final = ("", "due", "waiting", "pending", "retrying", "delivered", "dead")


@get("/deliveries")
async def list_deliveries(visit: NamedDependency[Visit]) -> Response[bytes]:
    """Search deliveries, newest first; a filter that cannot be read is shown as it was typed, with what is wrong."""
    given = visit.query("q", *BY_NAME, "cursor", repeated=("id",))
    cursor = given.pop("cursor", None)
    fields = [field for field in FORM if visit.viewer.sees_all or field.name != "organization"]
    page, wanted = Page(rows=()), Filter()
    counted: Counted | None = None
    wrong: Mapping[str, str] | None = None
    words, shown = given.get("q", ""), dict(given)
    try:
        wanted = read_filter(given)
    except FilterInvalid as exc:
        place = "q" if exc.field not in given else exc.field
        if place not in {"q", *(each.name for each in fields)}:
            raise  # not of these forms
        wrong = {"name": place, "words": str(exc) if place == "q" else str(exc).removeprefix(f"{exc.field}: ")}
    else:
        page = await visit.insights.deliveries(visit.scope, wanted, cursor, ROWS)
        counted = await visit.insights.count(visit.scope, wanted)
        words, shown = str(wanted), wanted.fields()
    chat = [row.id for row in page.rows if kind_of(row.destination) == CHAT]
    texts = {name: _text_of(body) for name, body in (await visit.insights.bodies(visit.scope, chat)).items()}
    state = wanted.only("status")
    beside = [term for term in wanted.terms if term.excluded or term.name not in {each.name for each in fields}]
    return visit.page(
        "deliveries.html",
        status=HTTPStatus.OK if wrong is None else HTTPStatus.BAD_REQUEST,
        page=page,
        texts=texts,
        counted=counted,
        cursor=cursor,
        words=words,
        tabs=[(name, str(wanted.having("status", *([name] if name else [])))) for name in TABS],
        state="" if not wanted.values("status") else state,
        shown=shown,
        beside=str(Filter.made(beside)),
        fields=fields,
        wrong=wrong,
        kinds=() if wrong else OF_MANY.get(state, OF_MANY[None]),
        needs_start=not wanted.values("since") and not names_rows(wanted),
    )


def _text_of(message: str) -> str:
    """Return the text of a stored chat message; what cannot be read as one is shown as it is."""
    try:
        return msgspec.json.decode(message, type=dict[str, str]).get("text", message)
    except (msgspec.MsgspecError, UnicodeError):
        return message


@get("/deliveries/{delivery_id:str}")
async def show_delivery(visit: NamedDependency[Visit], delivery_id: FromPath[str]) -> Response[bytes]:
    """Show one delivery: why it is not sent yet, what it sends, its attempts, what people did to it."""
    found = await visit.insights.delivery(visit.scope, delivery_id) if is_id(delivery_id) else None
    if found is None:
        raise Problem("not_found", "No delivery has this id.")
    row = found.row
    last = row.attempt_log[-1] if row.attempt_log else None
    is_chat = kind_of(row.destination) == CHAT
    body = _text_of(row.body or "") if is_chat else row.body or ""
    is_unsigned = row.is_unsigned_test or (last is not None and UNSIGNED in (last.note or ""))
    return visit.page(
        "delivery.html",
        found=found,
        kinds=() if is_chat and row.status == "delivered" else OF_ONE.get(row.status, ()),
        is_chat=is_chat,
        steps=steps(row.created_at, row.attempt_log),
        certainties=CERTAINTIES,
        resent_shown=RESENT_SHOWN,
        body=body[:BODY_CHARACTERS],
        body_more=max(0, len(body) - BODY_CHARACTERS),
        commands=None
        if is_chat
        else commands(row.method, row.url, row.headers, row.body, signed=not is_unsigned),
        not_signed=UNSIGNED,
        masked=MASK in row.url or any(header.value == MASK for header in row.headers),
    )
