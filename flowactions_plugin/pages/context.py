"""What the handlers of the pages use, and how they get it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from litestar import Request, Response
from litestar.di import Provide
from litestar.exceptions import ImproperlyConfiguredException

from flowactions_plugin.clock import Clock
from flowactions_plugin.deliveries.fields import BY_NAME
from flowactions_plugin.deliveries.filters import Filter, parse
from flowactions_plugin.pages.rendering import Renderer
from flowactions_plugin.pages.viewers import Viewer, viewer_of

if TYPE_CHECKING:
    from flowactions_plugin.bulk.actions import Actions
    from flowactions_plugin.bulk.pauses import Pauses
    from flowactions_plugin.deliveries.operator_queries import OperatorQueries, Unreadable

ROWS: Final = 50
"""Rows of a page of a list."""

MOST_REASON: Final = 500
"""Characters of a reason."""


class PageContext:
    """What handlers use.

    Args:
        queries: searches, counts and overviews.
        actions: bulk actions.
        pauses: paused destinations.
        renderer: makes the pages.
        clock: Unix seconds.
        undo_seconds: how long a bulk action can be undone.
        unreadable: says why a chat token cannot be used in this process.
    """

    def __init__(
        self,
        queries: OperatorQueries,
        actions: Actions,
        pauses: Pauses,
        renderer: Renderer,
        clock: Clock,
        undo_seconds: float,
        unreadable: Unreadable,
    ) -> None:
        self.queries = queries
        self.actions = actions
        self.pauses = pauses
        self.renderer = renderer
        self._clock = clock
        self.undo_seconds = undo_seconds
        self.unreadable = unreadable

    def __repr__(self) -> str:
        return "Parts(…)"

    def page(self, request: Request[Any, Any, Any], template: str, **values: Any) -> Response[bytes]:
        """Return a page; its template knows the time of now in Unix milliseconds."""
        return self.renderer.render(
            request,
            template,
            now=int(self._clock() * 1000),
            refusal=self.queries.status.writes.refusal,
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
