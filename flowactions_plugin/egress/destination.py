"""Webhook URLs, parsed strictly: what was checked is what is dialled."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote

from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.origins import (
    DEFAULT_PORTS,
    HTTP,
    NOT_IN_URL,
    is_host_name,
    is_number,
    kind_of,
    to_a_labels,
)

MAX_URL_LENGTH: Final = 2048

_ENCODED = re.compile(r"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")


class Destination(NamedTuple):
    """A URL that was parsed once, and is dialled as it was parsed.

    Attributes:
        url: as authored, but with an international host name in A-labels.
        scheme: ``http`` or ``https``.
        host: in lower case, without brackets.
        port: the port that is dialled.
        target: path and query as they are sent: as authored, except that characters that no URL may hold are
            percent-encoded; without the fragment.
        key: scheme, host and port, the unit of per-destination limits.
        authority: host and port as ``Host`` has them: without the scheme's own port.
    """

    url: str
    scheme: str
    host: str
    port: int
    target: str
    key: str
    authority: str


def destination_of(text: str) -> str:
    """Return the destination that a person names by itself or by a URL: scheme, host and port, or ``chat://`` and a workspace.

    Raises:
        EgressRefused: it names none.
    """
    if kind_of(text) == HTTP:
        return parse_destination(text).key
    workspace = text.removeprefix("chat://").partition("/")[0]
    if not re.fullmatch(r"[A-Za-z0-9%_.~-]{1,765}", workspace):
        raise EgressRefused("The id of the chat workspace is missing or malformed.")
    return f"chat://{workspace}"


def parse_destination(url: str) -> Destination:
    """Parse a webhook URL (§2.4).

    Raises:
        EgressRefused: it is not a URL that the service sends to; the message says why.
    """
    if not url:
        raise EgressRefused("The URL is missing.")
    if len(url) > MAX_URL_LENGTH:
        raise EgressRefused(f"The URL is longer than {MAX_URL_LENGTH} characters.")
    if forbidden := NOT_IN_URL.search(url):
        raise _refused("The URL contains a space, a control character or a backslash.", forbidden.start())
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in {"http", "https"}:
        raise _refused("The URL must start with http:// or https://.", 0)
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    begins = len(scheme) + len(separator)
    if "@" in authority:
        raise _refused("The URL must not contain a user name or password.", begins)
    try:
        host, port = _host_and_port(authority)
    except EgressRefused as exc:
        exc.offset = begins + (exc.offset or 0)
        raise
    bracketed = f"[{host}]" if ":" in host else host
    tail = rest[len(authority) :]
    if not authority.isascii():
        url = f"{scheme}://{bracketed}{'' if port is None else f':{port}'}{tail}"
    if port is None:
        port = DEFAULT_PORTS[scheme]
    with_port = f"{bracketed}:{port}"
    return Destination(
        url,
        scheme,
        host,
        port,
        _target(tail),
        key=f"{scheme}://{with_port}",
        authority=bracketed if port == DEFAULT_PORTS[scheme] else with_port,
    )


def _refused(message: str, offset: int) -> EgressRefused:
    refused = EgressRefused(message)
    refused.offset = offset
    return refused


def _target(text: str) -> str:
    text = text.partition("#")[0]
    return _ENCODED.sub(lambda found: quote(found[0]), text if text.startswith("/") else f"/{text}")


@lru_cache(1024)
def _host_and_port(authority: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", authority, re.ASCII)
    if match is None:
        raise EgressRefused("The URL's host or port is not well formed.")
    host, port = match.group(1), match.group(2)
    if port is not None and not 1 <= int(port) <= 65535:
        raise _refused("The URL's port must be from 1 to 65535.", match.start(2))
    if host.startswith("["):
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise EgressRefused("The URL's host is not an IPv6 address.") from None
    else:
        host = _host_name(host)
    return host, None if port is None else int(port)


def _host_name(host: str) -> str:
    """Return a host name or dotted IPv4 address in lower case; unusual spellings of numbers are refused."""
    try:
        host = to_a_labels(host).lower()
    except ValueError:
        raise EgressRefused("The URL's host is not an international name that can be looked up.") from None
    if not is_host_name(host):
        raise EgressRefused("The URL's host is not a host name.")
    if is_number(host):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise EgressRefused("The URL's host is not an IPv4 address in its usual spelling.") from None
    return host
