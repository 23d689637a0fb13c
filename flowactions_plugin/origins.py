"""Web origins (RFC 6454) and host names (IDNA) in normal forms, so that equal ones are equal text, and kinds of destinations."""

from __future__ import annotations

import re
from typing import Final, Literal

import idna

_ORIGIN: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII | re.IGNORECASE,
)
NOT_IN_URL: Final = re.compile("[\x00-\x20\x7f-\x9f\\\\\\s\ud800-\udfff]")
"""Spaces, control characters, backslashes and halves of surrogate pairs: what no URL of an author or a setting may hold."""

_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII | re.IGNORECASE)

DEFAULT_PORTS: Final = {"http": 80, "https": 443}
"""The ports of URLs that name none."""


CHAT: Final = "chat"
HTTP: Final = "http"


def kind_of(destination: str) -> Literal["chat", "http"]:
    """Return how a destination, or a URL of it, is reached: ``chat`` through the chat provider, ``http`` by a request of its own."""
    return CHAT if destination.startswith("chat://") else HTTP


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
    number = None if port is None else int(port)
    if number is not None and not 0 < number < 65536:
        return None
    return f"{scheme}://{host}" if number in {None, DEFAULT_PORTS[scheme]} else f"{scheme}://{host}:{number}"


def origin_of(url: str) -> str | None:
    """Return the origin of an ``http`` or ``https`` URL; ``None`` when it has none."""
    scheme, separator, rest = url.partition("://")
    return parse_origin(f"{scheme}{separator}{re.split(r'[/?#]', rest, maxsplit=1)[0]}")


def to_a_labels(host: str) -> str:
    """Return a host name in ASCII, with A-labels (``xn--…``), mapped by UTS #46 (not transitional).

    The mapping may turn full-width digits and dots into an IPv4 address, or another character into a slash. The caller
    validates the result like any host.

    Raises:
        ValueError: IDNA does not allow the name; the message does not hold it.
    """
    if host.isascii():
        return host
    try:
        mapped = idna.uts46_remap(host, std3_rules=False, transitional=False)
        if mapped.isascii():
            return mapped
        return idna.encode(mapped, uts46=True, transitional=False).decode("ascii")
    except (UnicodeError, IndexError):  # raised by the library
        pass
    raise ValueError("not a name that IDNA allows")


def is_host_name(host: str) -> bool:
    """Return whether a text in ASCII is a host name, or looks like an IPv4 address; the dot of the root may end it."""
    return len(host) <= 253 and all(map(_LABEL.fullmatch, host.removesuffix(".").split(".")))


def is_number(host: str) -> bool:
    """Return whether systems read a host as an IPv4 address: its last label is a number, decimal or hexadecimal."""
    return _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]) is not None
