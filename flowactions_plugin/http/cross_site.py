"""Detects requests that a browser sends for a page of another site."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final, NamedTuple

from litestar.connection import ASGIConnection

from flowactions_plugin.origins import parse_origin

OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Allowed values of ``Sec-Fetch-Site``. ``same-site`` is not: another subdomain may belong to someone else."""


class Fetch(NamedTuple):
    """The headers that tell where a request comes from; a missing header is ``None``.

    Attributes:
        site: ``Sec-Fetch-Site``.
        mode: ``Sec-Fetch-Mode``.
        dest: ``Sec-Fetch-Dest``.
        origin: ``Origin``.
        host: ``Host``.
        scheme: the request's, as the server sees it: behind a proxy that terminates TLS it is ``http``.
    """

    site: str | None = None
    mode: str | None = None
    dest: str | None = None
    origin: str | None = None
    host: str | None = None
    scheme: str = "http"

    @classmethod
    def of(cls, connection: ASGIConnection[Any, Any, Any, Any]) -> Fetch:
        """Return the headers of a request. A repeated header is not trusted, and its value matches nothing."""
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
    """Return whether a browser sends a request for a page that is not the dashboard's.

    A request with neither ``Sec-Fetch-Site`` nor ``Origin`` is not from a browser: browsers send at least one of them
    with requests that change something.

    Args:
        fetch: the request's headers.
        allowed: origins whose pages may send it, as `parse_origin` writes them.
        navigable: whether a user may follow a link from another site.
    """
    origin = None if fetch.origin is None else parse_origin(fetch.origin)
    if origin is not None and origin in allowed:
        return False
    if fetch.site is not None:
        if fetch.site in OWN_SITES:
            return False
        return not (navigable and (fetch.mode, fetch.dest) == ("navigate", "document"))
    return fetch.origin is not None and not _is_own(origin, fetch)


def is_own_page(fetch: Fetch, own: Collection[str]) -> bool:
    """Return whether a browser says that a page of the very origin of the request sends it.

    A form can be sent by any page, without a preflight, so what says nothing is refused. Browsers send ``Sec-Fetch-Site``
    to https and to loopback, and ``Origin`` with every POST, also on plain http.

    Args:
        fetch: the request's headers.
        own: origins at which browsers reach the routes, as `parse_origin` writes them, beside that of ``Host``.
    """
    if fetch.site is not None:
        return fetch.site == "same-origin"
    origin = None if fetch.origin is None else parse_origin(fetch.origin)
    return (origin is not None and origin in own) or _is_own(origin, fetch)


def _is_own(origin: str | None, fetch: Fetch) -> bool:
    """Return whether an origin is that of the request's ``Host``."""
    if origin is None or fetch.host is None:
        return False
    scheme = origin.partition("://")[0]
    if fetch.scheme == "https" and scheme != "https":
        return False
    return origin == parse_origin(f"{scheme}://{fetch.host}")
