"""URLs in settings: parsed completely when settings are read, so that no later parser fails.

They may hold a password, and the messages of parsers quote their input. So no message of this module holds a part of the
URL.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote

from flowactions_plugin.origins import to_a_labels

_NOT_IN_URL = re.compile("[\x00-\x20\x7f-\x9f\\\\\\s\ud800-\udfff]")
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}", re.ASCII)
_BROKEN_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")

PERCENT_ENCODE = "must be a URL in which every @ / ? # [ ] % and space in the user name or password is percent-encoded (@ as %40)"


class SettingUrl(NamedTuple):
    """A URL of a setting.

    Attributes:
        userinfo: user name and password, percent-encoded as they were given; empty when there are none.
        host: as it is dialled, an IPv6 address in brackets.
        port: ``None`` when the URL names none.
        path: with its first slash, or empty.
    """

    scheme: str
    userinfo: str
    host: str
    port: int | None
    path: str

    def __repr__(self) -> str:
        return "SettingUrl(…)"

    @property
    def origin(self) -> str:
        """Scheme, host and port, without user name and password."""
        return f"{self.scheme}://{self.host}" + ("" if self.port is None else f":{self.port}")

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User name and password, decoded."""
        if not self.userinfo:
            return None
        user, _, password = self.userinfo.partition(":")
        return unquote(user), unquote(password)

    @property
    def text(self) -> str:
        """The URL, whole."""
        userinfo = f"{self.userinfo}@" if self.userinfo else ""
        return f"{self.scheme}://{userinfo}{self.origin.partition('://')[2]}{self.path}"


def parse_url(text: str, *, with_userinfo: bool = False) -> SettingUrl:
    """Parse an http or https URL without a query.

    Args:
        text: the setting's text.
        with_userinfo: whether it may hold a user name and a password.

    Raises:
        ValueError: it cannot be used; the message begins with "must" and holds no part of it.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in {"http", "https"}:
        raise ValueError("must be a URL that starts with http:// or https://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    tail = rest[len(authority) :]
    if "@" in rest and not with_userinfo:
        raise ValueError("must be a URL without a user name or password (an @ in its path is written %40)")
    # Which of several @ ends the password, or whether a slash does, is anybody's guess.
    if "@" in tail or authority.count("@") > 1 or ("@" in rest and _NOT_IN_URL.search(rest)):
        raise ValueError(PERCENT_ENCODE)
    if _NOT_IN_URL.search(text):
        raise ValueError("must be a URL without spaces, control characters and backslashes")
    if re.search(r"[?#]", tail):
        raise ValueError("must be a URL without a query or fragment")
    userinfo, _, host_and_port = authority.rpartition("@")
    _check_userinfo(userinfo)
    host, port = _host_and_port(host_and_port)
    return SettingUrl(scheme, userinfo, host, port, tail)


def _check_userinfo(userinfo: str) -> None:
    user, _, password = userinfo.partition(":")
    if re.search(r"[\[\]]", userinfo) or _BROKEN_PERCENT.search(userinfo):
        raise ValueError(PERCENT_ENCODE)
    try:
        decoded = unquote(user, errors="strict"), unquote(password, errors="strict")
    except UnicodeError:
        decoded = None
    if decoded is None:
        raise ValueError("must be a URL whose user name and password are percent-encoded UTF-8")
    if ":" in decoded[0]:
        raise ValueError("must be a URL whose user name holds no colon")


def _host_and_port(text: str) -> tuple[str, int | None]:
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None:
        raise ValueError("must be a URL whose host is a name or an address, with a port from 1 to 65535 if any")
    port = None if match[2] is None else int(match[2])
    if port is not None and not 1 <= port <= 65535:
        raise ValueError("must be a URL whose port is from 1 to 65535")
    host = _ipv6(match[1]) if match[1].startswith("[") else _name(match[1])
    if host is None:
        raise ValueError("must be a URL whose host is a host name or an IP address")
    return host, port


def _ipv6(text: str) -> str | None:
    try:
        return f"[{ipaddress.IPv6Address(text[1:-1])}]"
    except ValueError:
        return None


def _name(text: str) -> str | None:
    try:
        host = to_a_labels(text)
    except ValueError:
        return None
    return host if _HOST.fullmatch(host) else None
