"""Web origins (RFC 6454) in a normal form, so that equal origins are equal text."""

from __future__ import annotations

import re
from typing import Final

_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII | re.IGNORECASE,
)
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""The ports of URLs that name none."""


def parse_origin(text: str) -> str | None:
    """Parse an origin of the header ``Origin``: ``https://app.example.com``, with a port or without.

    Returns:
        The origin in lower case, without a default port; ``None`` for anything else, ``null`` and URLs with a path
        included.
    """
    found = _ORIGIN.fullmatch(text)
    if found is None:
        return None
    scheme, host, port = found["scheme"].lower(), found["host"].lower(), found["port"]
    if port is not None and not 0 < int(port) < 65536:
        return None
    number = None if port is None else int(port)
    return f"{scheme}://{host}" if number in {None, DEFAULT_PORTS[scheme]} else f"{scheme}://{host}:{number}"


def origin_of(url: str) -> str | None:
    """Return the origin of an ``http`` or ``https`` URL; ``None`` when it has none."""
    scheme, separator, rest = url.partition("://")
    return parse_origin(f"{scheme}{separator}{re.split(r'[/?#]', rest, maxsplit=1)[0]}")
