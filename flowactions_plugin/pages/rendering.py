"""Makes the pages of templates, with the headers that all of them have.

Errors are pages too, with the status, title and advice that the JSON routes have for them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from litestar import MediaType, Request, Response
from litestar.response import Redirect
from litestar.types import ExceptionHandlersMap
from markupsafe import escape

from flowactions_plugin.clock import moment
from flowactions_plugin.errors import (
    ActionForbidden,
    ActionInvalid,
    FilterInvalid,
    StorageUnavailable,
    TooManyPauses,
)
from flowactions_plugin.http.auth import sign_in_url
from flowactions_plugin.http.problems import HANDLERS, NO_STORE, Problem, ProblemDetails
from flowactions_plugin.insights.facts import clock_offset
from flowactions_plugin.insights.filters import TIMES, Filter, parse
from flowactions_plugin.log_text import plural
from flowactions_plugin.pages import formats
from flowactions_plugin.pages.guard import ASGIRequest, SignInNeeded, viewer_of

if TYPE_CHECKING:
    from jinja2 import Environment

ROOT: Final = "/integrations/webhooks"

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Vary": "Cookie, Authorization",
    **NO_STORE,
}
"""``connect-src``: the script fetches the page again to bring it up to date."""

_KEPT = frozenset({"retry-after", "www-authenticate", "allow"})

_CODES = {ActionForbidden: "forbidden", TooManyPauses: "too_many_pauses"}
"""Errors of what people ask for, beside those of its form."""

_FOLDER: Final = Path(__file__).parent
_KINDS: Final = {".css": "text/css", ".js": "text/javascript"}


class Renderer:
    """The templates and the files that they use; both are read at the first page (§7.3).

    Args:
        home: a page of the host's own dashboard, to which the pages lead back; ``None``: none is known.
    """

    def __init__(self, home: str | None = None) -> None:
        self._home = home

    @cached_property
    def files(self) -> dict[str, tuple[bytes, str]]:
        """Name → content and media type of a file; a name changes with the content."""
        found = {}
        for path in sorted((_FOLDER / "static").iterdir()):
            if path.suffix in _KINDS:
                content = path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:16]
                found[f"{path.stem}.{digest}{path.suffix}"] = content, _KINDS[path.suffix]
        return found

    @cached_property
    def _environment(self) -> Environment:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  used by few processes

        made = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=formats.plain,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        made.filters |= {
            "iso": moment,
            "utc": formats.utc,
            "span": formats.span,
            "timed": formats.timed,
            "number": formats.number,
            "place": formats.place,
            "channel": formats.channel,
            "breakable": formats.breakable,
            "plural": plural,
            "clock_offset": clock_offset,
            "exact": escape,
            "chips": chips,
        }
        made.globals |= {
            "share": formats.share,
            "query": query_text,
            "matching": lambda **fields: query_text({"q": str(Filter.of(**fields))}),
            "times": TIMES,
            "files": {name.partition(".")[0]: name for name in self.files},
        }
        return made

    def render(
        self,
        request: ASGIRequest,
        template: str,
        *,
        status: int = 200,
        headers: dict[str, str] | None = None,
        **values: Any,
    ) -> Response[bytes]:
        """Return a page.

        Args:
            request: answered by it.
            template: name of its template.
            status: HTTP status.
            headers: further headers.
            values: of the template.
        """
        frame = {"base": base_of(request), "viewer": viewer_of(request), "home": self._home, "refusal": None}
        text = self._environment.get_template(template).render(frame | values)
        return Response(
            text.encode("utf-8", "replace"),
            status_code=status,
            media_type=MediaType.HTML,
            headers={**(headers or {}), **HEADERS},
        )


def chips(words: str | None) -> list[tuple[str, str]]:
    """Return the terms of a filter in words: names and values; what is stored and cannot be read is shown as it is."""
    try:
        terms = parse(words or "").terms
    except FilterInvalid:
        return [("filter", words or "")]
    return [(f"{'not ' if each.excluded else ''}{each.name}", each.text) for each in terms]


def base_of(request: ASGIRequest) -> str:
    """Return where the pages are, relative to the page that is asked for.

    Links are relative, so they lead to the right place under any prefix, root path or proxy that cuts a path.
    """
    # As the browser has it: Litestar cuts a slash at the end from the decoded path.
    raw = (request.scope.get("raw_path") or b"").decode("latin-1")
    path = raw if ROOT in raw else request.scope["path"]
    below = path[path.rfind(ROOT) + len(ROOT) :] if ROOT in path else ""
    return "../" * below.count("/") + ROOT.rpartition("/")[2]


def query_text(*parts: dict[str, str], **more: str) -> str:
    """Return a URL's query with its question mark; empty text when there is nothing in it."""
    merged = {name: value for part in (*parts, more) for name, value in part.items() if value}
    return f"?{urlencode(merged)}" if merged else ""


def page_handlers(renderer: Renderer, login_url: str | None) -> ExceptionHandlersMap:
    """Return the exception handlers of the pages' router.

    Args:
        renderer: makes the pages.
        login_url: where people sign in; ``None``: the host has said nothing.
    """

    def as_page(handler: Any) -> Callable[[Request[Any, Any, Any], Any], Response[Any]]:
        def answer(request: Request[Any, Any, Any], exc: Any) -> Response[Any]:
            answer: Response[dict[str, Any]] = handler(request, exc)
            kept = {name: value for name, value in answer.headers.items() if name.lower() in _KEPT}
            return renderer.render(
                request, "problem.html", status=answer.status_code or 500, headers=kept, problem=answer.content
            )

        return answer

    def sign_in(request: Request[Any, Any, Any], _: SignInNeeded) -> Response[Any]:
        if login_url is not None and request.method == "GET":
            return Redirect(sign_in_url(request, login_url), status_code=303, headers=HEADERS)
        needed = Problem(
            "unauthorized",
            "Sign in to the dashboard, then open this page again.",
            headers={"WWW-Authenticate": 'Bearer realm="dashboard"'},
        )
        return as_page(HANDLERS[Problem])(request, needed)

    def unusable(_: Request[Any, Any, Any], exc: FilterInvalid | ActionInvalid) -> Response[Any]:
        code = next((code for kind, code in _CODES.items() if isinstance(exc, kind)), "invalid_request")
        return HANDLERS[Problem](_, Problem(code, str(exc)))

    def unavailable(request: Request[Any, Any, Any], exc: StorageUnavailable) -> Response[Any]:
        answer: Response[ProblemDetails] = HANDLERS[StorageUnavailable](request, exc)
        viewer = viewer_of(request)
        if exc.obstacle is not None and viewer is not None and viewer.sees_all:
            answer.content.detail = f"The database did not answer: {exc.obstacle}."
        return answer

    handlers = {
        **HANDLERS,
        FilterInvalid: unusable,
        ActionInvalid: unusable,
        StorageUnavailable: unavailable,
    }
    return {**{kind: as_page(handler) for kind, handler in handlers.items()}, SignInNeeded: sign_in}
