"""The bytes of a request's head; what a stored row says of it is checked once more."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from flowactions_plugin.egress.attempt import Request
from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.signature import folded
from flowactions_plugin.errors import SendFailed

_OWN: Final = frozenset({"host", "content-length", "transfer-encoding"})
"""Headers that frame a message; a stored row cannot set them."""

_EXPECT_NO_BODY: Final = frozenset({"GET", "HEAD", "DELETE", "OPTIONS", "TRACE"})
"""Methods whose requests say nothing of a body when they have none (RFC 9110 §8.6)."""

_NOT_A_TOKEN: Final = re.compile(r"[^!#$%&'*+\-.^_`|~0-9A-Za-z]|^$")


def head_of(request: Request, *, absolute: bool = False, extra: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return the request line and the headers, with the empty line after them.

    Args:
        request: what is sent. Its framing headers and its host are written here, whatever it says of them.
        absolute: whether the request line has the whole URL, as a forward proxy needs it.
        extra: headers for the proxy.

    Raises:
        SendFailed: HTTP does not allow the method, or a header's name or value.
    """
    destination = request.destination
    if not _is_token(request.method):
        raise SendFailed("the stored method is not one that HTTP allows")
    host = destination.authority
    target = f"{destination.scheme}://{host}{destination.target}" if absolute else destination.target
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers if _is_free(name)]
    lines += [f"{name}: {value}" for name, value in extra]
    if request.body or request.method not in _EXPECT_NO_BODY:
        lines.append(f"Content-Length: {len(request.body or b'')}")
    lines += ["", ""]
    text = "\r\n".join(lines)
    breaks = len(lines) - 1
    if text.count("\r") != breaks or text.count("\n") != breaks or "\0" in text:
        raise SendFailed("the value of a stored header is one that HTTP does not allow")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise SendFailed("a stored header holds half of a surrogate pair, which cannot be sent") from None


@lru_cache(maxsize=1024)
def _is_token(text: str) -> bool:
    return not _NOT_A_TOKEN.search(text)


@lru_cache(maxsize=1024)
def _is_free(name: str) -> bool:
    """Return whether a stored header is sent: those that frame the message are not.

    Raises:
        SendFailed: HTTP does not allow the name.
    """
    if not _is_token(name):
        raise SendFailed(f"the stored header {name[:100]!r} is not one that HTTP allows")
    return folded(name) not in _OWN


def connect_head(destination: Destination, extra: Sequence[tuple[str, str]]) -> bytes:
    """Return the request for a tunnel to a destination through a proxy."""
    where = destination.key.removeprefix(f"{destination.scheme}://")
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}", *(f"{name}: {value}" for name, value in extra)]
    return "\r\n".join([*lines, "\r\n"]).encode()
