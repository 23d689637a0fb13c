"""What the handlers of the pages use: how they get it, and how they read forms and queries, strictly: known fields, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from litestar import Request, Response
from litestar.di import Provide
from litestar.exceptions import ImproperlyConfiguredException

from flowactions_plugin.clock import Clock
from flowactions_plugin.http.auth import read_body
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.insights.fields import BY_NAME
from flowactions_plugin.insights.filters import Filter, parse
from flowactions_plugin.pages.guard import Viewer, viewer_of
from flowactions_plugin.pages.rendering import Renderer

if TYPE_CHECKING:
    from flowactions_plugin.insights.port import Insights, Unreadable
    from flowactions_plugin.operations.port import Operations

ROWS: Final = 50
"""Rows of a page of a list."""

MAX_FIELDS: Final = 2000
"""A form selects up to a thousand rows of a page."""


class PageContext:
    """What handlers use.

    Args:
        insights: what the pages show.
        operations: what people do.
        renderer: makes the pages.
        clock: Unix seconds.
        unreadable: says why a chat token cannot be used in this process.
    """

    def __init__(
        self,
        insights: Insights,
        operations: Operations,
        renderer: Renderer,
        clock: Clock,
        unreadable: Unreadable,
    ) -> None:
        self.insights = insights
        self.operations = operations
        self.renderer = renderer
        self._clock = clock
        self.unreadable = unreadable

    def __repr__(self) -> str:
        return "Parts(…)"

    def page(self, request: Request[Any, Any, Any], template: str, **values: Any) -> Response[bytes]:
        """Return a page; its template knows the time of now in Unix milliseconds."""
        return self.renderer.render(
            request,
            template,
            now=int(self._clock() * 1000),
            refusal=self.insights.refusal,
            **values,
        )


def _viewer(request: Request[Any, Any, Any]) -> Viewer:
    viewer = viewer_of(request)
    if viewer is None:  # a router without the guard
        raise ImproperlyConfiguredException("nobody has checked who calls")
    return viewer


VIEWER: Final = Provide(_viewer, sync_to_thread=False)
"""The dependency that provides who looks."""


def read_filter(fields: Mapping[str, str]) -> Filter:
    """Return the filter of those fields of a query or form that belong to one.

    Raises:
        FilterInvalid: a value cannot be used.
    """
    return parse({name: value for name, value in fields.items() if name in BY_NAME})


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
    for name, value in pairs:
        if name not in known:
            raise Problem("invalid_request", f"This form has no field {name[:40]!r}.")
        if counts[name] > 1 and name not in repeated:
            raise Problem("invalid_request", f"The field {name!r} is given more than once.")
        if "\0" in value:
            raise Problem("invalid_request", f"The field {name!r} must not hold a NUL character.")
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if value.strip():
            found.setdefault(name, []).append(value.strip())
    return {name: ",".join(values) for name, values in found.items()}


async def read_form(
    request: Request[Any, Any, Any], known: Collection[str], repeated: Collection[str] = ()
) -> dict[str, str]:
    """Read a request's form, as `read_fields` does.

    Raises:
        Problem: as there.
        RequestEntityTooLarge: it is longer than 64 KiB.
    """
    return read_fields(await read_body(request), known, repeated)


def read_query(
    request: Request[Any, Any, Any], known: Collection[str], repeated: Collection[str] = ()
) -> dict[str, str]:
    """Read a request's query, as `read_fields` does.

    Raises:
        Problem: as there.
    """
    return read_fields(request.scope.get("query_string", b""), known, repeated)
