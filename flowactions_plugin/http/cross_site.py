"""Which requests a browser sends on behalf of another site."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from litestar.connection import ASGIConnection

from flowactions_plugin.origins import parse_origin

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of ``Sec-Fetch-Site`` that pass. ``same-site`` does not: another subdomain may be somebody else's."""


class Fetch(NamedTuple):
    """What a request says of where it comes from; a header that is not there is ``None``.

    Attributes:
        site: ``Sec-Fetch-Site``.
        mode: ``Sec-Fetch-Mode``.
        dest: ``Sec-Fetch-Dest``.
        origin: ``Origin``.
        host: ``Host``.
        scheme: of the request, as far as it is known here: behind a proxy that ends TLS it is ``http``.
    """

    site: str | None = None
    mode: str | None = None
    dest: str | None = None
    origin: str | None = None
    host: str | None = None
    scheme: str = "http"

    @classmethod
    def of(cls, connection: ASGIConnection[Any, Any, Any, Any]) -> Fetch:
        """Read a request's headers. One that is there twice is none that can be trusted, and matches nothing."""
        headers = connection.headers
        read = {
            field: ",".join(headers.getall(name)) if name in headers else None
            for field, name in (
                ("site", "sec-fetch-site"),
                ("mode", "sec-fetch-mode"),
                ("dest", "sec-fetch-dest"),
                ("origin", "origin"),
                ("host", "host"),
            )
        }
        return cls(**read, scheme=str(connection.scope.get("scheme", "http")))


def is_cross_site(fetch: Fetch, allowed: Collection[str], *, navigable: bool = False) -> bool:
    """Returns whether a browser sends a request for a page that is not the dashboard's.

    A request with neither ``Sec-Fetch-Site`` nor ``Origin`` comes from no browser: those send at least one of them
    with whatever changes something.

    Args:
        fetch: what the request says.
        allowed: origins whose pages may, as `parse_origin` writes them.
        navigable: whether a person who follows a link from elsewhere may.
    """
    origin = None if fetch.origin is None else parse_origin(fetch.origin)
    if origin is not None and origin in allowed:
        return False
    if fetch.site is not None:
        if fetch.site in OWN_SITES:
            return False
        return not (navigable and (fetch.mode, fetch.dest) == ("navigate", "document"))
    return fetch.origin is not None and not _is_own(origin, fetch)


def _is_own(origin: str | None, fetch: Fetch) -> bool:
    """Returns whether an origin is the one that the request was sent to, as far as its ``Host`` says."""
    if origin is None or fetch.host is None:
        return False
    scheme = origin.partition("://")[0]
    if fetch.scheme == "https" and scheme != "https":
        return False
    return origin == parse_origin(f"{scheme}://{fetch.host}")
