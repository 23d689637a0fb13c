"""Checks a request of the operator pages before its handler runs, whichever handler that is."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final

from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from flowactions_hookspecs import FlowActionsError, NotStarted
from flowactions_plugin.http.cross_site import Fetch, is_own_page
from flowactions_plugin.http.problems import Problem
from flowactions_plugin.pages.viewers import ASGIRequest, Viewers, keep_viewer

FORM: Final = "application/x-www-form-urlencoded"

FOR_CHANGERS: Final[dict[str, Any]] = {"flowactions_for_changers": True}
"""Marks a handler of GET that only people who may change something may see. Every other method is for them alone."""

FOR_EVERYBODY: Final[dict[str, Any]] = {"flowactions_for_everybody": True}
"""Marks a handler of POST that changes nothing but the caller's own session."""

_READING: Final = frozenset({"GET", "HEAD"})


class SignInNeeded(FlowActionsError):
    """Nobody is signed in."""


class PageGuard:
    """Checks a request, in this order, before its handler runs.

    The lifespan runs (503), somebody is signed in (401), they may do it (403), a page of the same origin sends the form
    (403), and it is a form (415).

    A handler that is not marked otherwise may be seen by everybody who is signed in when its method is GET, and by those
    who may change something when it is another: a new handler that says nothing is closed to readers.

    Args:
        viewers: tells who calls.
        origins: at which browsers reach the routes, as `parse_origin` writes them.
        is_running: whether the lifespan is open.
    """

    def __init__(self, viewers: Viewers, origins: Collection[str], is_running: Callable[[], bool]) -> None:
        self._viewers = viewers
        self._origins = frozenset(origins)
        self._is_running = is_running

    def guard(self) -> Guard:
        """Return the guard of the pages' router."""

        async def check(request: ASGIRequest, handler: BaseRouteHandler) -> None:
            method = request.scope.get("method")
            if method == "OPTIONS":
                return  # Litestar answers with the allowed methods
            if not self._is_running():
                raise NotStarted
            viewer = await self._viewers.find(request)
            if viewer is None:
                raise SignInNeeded
            keep_viewer(request, viewer)
            if not viewer.may_change and _is_for_changers(method, handler):
                raise Problem("forbidden", "You may look at this, and not change it.")
            if method not in _READING:
                self._check_form(request)

        return check

    def _check_form(self, request: ASGIRequest) -> None:
        if not is_own_page(Fetch.of(request), self._origins):
            raise Problem(
                "cross_site",
                "The browser does not say that a page of this site sent this. Open the page again at its own address, and"
                " send the form from there. Behind a proxy that changes the header Host, set BACKEND_PUBLIC_URL.",
            )
        kinds = [kind.partition(";")[0].strip().lower() for kind in request.headers.getall("content-type", [])]
        if kinds != [FORM]:
            raise Problem("unsupported_media_type", f"Send the form as {FORM}.")


def _is_for_changers(method: Any, handler: BaseRouteHandler) -> bool:
    if method in _READING:
        return bool(handler.opt.get("flowactions_for_changers"))
    return not handler.opt.get("flowactions_for_everybody")


def must_run(is_running: Callable[[], bool]) -> Guard:
    """Return a guard that only checks that the lifespan is open."""

    async def check(request: ASGIRequest, _: BaseRouteHandler) -> None:
        if request.scope.get("method") != "OPTIONS" and not is_running():
            raise NotStarted

    return check
