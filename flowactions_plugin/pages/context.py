"""What a handler of the pages gets, and how it reads forms and queries, strictly: known fields, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.exceptions import ImproperlyConfiguredException
from litestar.response import Redirect

from flowactions_plugin.clock import Clock
from flowactions_plugin.http.auth import read_body
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.insights.filters import BY_NAME, Filter, parse
from flowactions_plugin.insights.port import Insights, Unreadable
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.pages.guard import Find, Viewer, viewer_of
from flowactions_plugin.pages.rendering import HEADERS, Renderer, base_of, query_text
from flowactions_plugin.pages.sessions import Sessions

Row = TypeVar("Row")

ROWS: Final = 50
"""Rows of a page of a list."""

MAX_FIELDS: Final = 2000
"""A form selects up to a thousand rows of a page."""


class PageContext(NamedTuple):
    """What the pages of a host use.

    Attributes:
        insights: what the pages show.
        operations: what people do.
        renderer: makes the pages.
        clock: Unix seconds.
        unreadable: says why a chat token cannot be used in this process.
        sessions: seals and opens the session cookie.
        find_viewer: says who sends a request.
        secure: whether browsers reach the pages by https, so that cookies are never sent without.
    """

    insights: Insights
    operations: Operations
    renderer: Renderer
    clock: Clock
    unreadable: Unreadable
    sessions: Sessions
    find_viewer: Find
    secure: bool


class Visit:
    """A request to the pages.

    Attributes:
        viewer: who sends it.
        scope: whose rows they see.
        context: what the pages use.
        insights: what the pages show.
        operations: what people do.
    """

    def __init__(self, request: Request[Any, Any, Any], context: NamedDependency[PageContext]) -> None:
        viewer = viewer_of(request)
        if viewer is None:  # a router without the guard
            raise ImproperlyConfiguredException("nobody has checked who calls")
        self._request = request
        self.viewer: Viewer = viewer
        self.scope: Scope = viewer.scope
        self.context = context
        self.insights = context.insights
        self.operations = context.operations

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response[bytes]:
        """Return a page; its template knows the time of now in Unix milliseconds."""
        now = int(self.context.clock() * 1000)
        refusal = self.insights.refusal
        return self.context.renderer.render(
            self._request, template, status=status, now=now, refusal=refusal, **values
        )

    def redirect(self, path: str, **query: str) -> Redirect:
        """Return an answer that leads to another page, by its path below the root of the pages."""
        url = f"{base_of(self._request)}{quote(path)}{query_text(query)}"
        return Redirect(url, status_code=303, headers=HEADERS)

    def query(self, *known: str, repeated: Collection[str] = ()) -> dict[str, str]:
        """Read the request's query, as `read_fields` does."""
        return read_fields(self._request.scope.get("query_string", b""), known, repeated)

    async def form(self, *known: str) -> dict[str, str]:
        """Read the request's form, as `read_fields` does.

        Raises:
            Problem: as there.
            RequestEntityTooLarge: it is longer than 64 KiB.
        """
        return read_fields(await read_body(self._request), known)


def cut(rows: Sequence[Row]) -> tuple[Sequence[Row], Row | None]:
    """Return the rows of a page, of which one more than it has was asked for; and its last one, if there are more."""
    return rows[:ROWS], rows[ROWS - 1] if len(rows) > ROWS else None


def read_filter(given: Mapping[str, str]) -> Filter:
    """Return the filter of a query or a form: of the words in ``q``, and of the fields that belong to one.

    Raises:
        FilterInvalid: a value cannot be used.
    """
    return parse(given.get("q", ""), fields={name: text for name, text in given.items() if name in BY_NAME})


def read_fields(raw: bytes, known: Collection[str], repeated: Collection[str] = ()) -> dict[str, str]:
    """Decode a form or a query.

    Args:
        raw: ``application/x-www-form-urlencoded``.
        known: names of fields; empty ones are left out of the result.
        repeated: those that may occur several times, joined by commas.

    Raises:
        Problem: 400, it is not UTF-8, has too many fields, an unknown or a repeated one, or one with NUL.
    """
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise Problem("invalid_request", "What was sent is not percent-encoded UTF-8, or too long.") from None
    counts = Counter(name for name, _ in pairs)
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            raise Problem("invalid_request", f"This form has no field {name[:40]!r}.")
        if counts[name] > 1 and name not in repeated:
            raise Problem("invalid_request", f"The field {name!r} is given more than once.")
        if "\0" in value:
            raise Problem("invalid_request", f"The field {name!r} must not hold a NUL character.")
        if value.strip():
            found.setdefault(name, []).append(value.strip())
    return {name: ",".join(values) for name, values in found.items()}
