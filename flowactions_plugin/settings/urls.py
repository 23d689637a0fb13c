"""URLs in settings: parsed completely when settings are read, so that no later parser fails.

They may hold a password, and the messages of parsers quote their input. So no message of this module holds a part of the
URL.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import unquote

from flowactions_plugin.origins import NOT_IN_URL, to_a_labels

_PARTS = re.compile(r"(https?)://([^/?#]*)(.*)", re.DOTALL | re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::([0-9]{1,5}))?", re.ASCII)
_HOST = re.compile(r"\[.*\]|[A-Za-z0-9_.-]{1,253}", re.ASCII)
_NOT_IN_USERINFO = re.compile(r"[\[\]]|%(?![0-9A-Fa-f]{2})|^[^:]*%3a", re.IGNORECASE)

PERCENT_ENCODE = (
    "must be a URL in which every @ / ? # [ ] % and space in the user name or password is percent-encoded (@ as %40), as UTF-8;"
    " a user name holds no colon"
)
HOST = "must be a URL whose host is a name or an address, with a port from 1 to 65535 if any"


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
    def credentials(self) -> tuple[str, str] | None:
        """User name and password, decoded."""
        user, _, password = self.userinfo.partition(":")
        return (unquote(user), unquote(password)) if self.userinfo else None

    @property
    def text(self) -> str:
        """The URL, whole."""
        userinfo = f"{self.userinfo}@" if self.userinfo else ""
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{userinfo}{self.host}{port}{self.path}"


def parse_url(text: str, *, with_userinfo: bool = False) -> SettingUrl:
    """Parse an http or https URL without a query.

    Args:
        text: the setting's text.
        with_userinfo: whether it may hold a user name and a password.

    Raises:
        ValueError: it cannot be used; the message begins with "must" and holds no part of it.
    """
    found = _PARTS.fullmatch(text)
    if found is None:
        raise ValueError("must be a URL that starts with http:// or https://")
    authority, tail = found[2], found[3]
    if "@" in authority + tail and not with_userinfo:
        raise ValueError("must be a URL without a user name or password (an @ in its path is written %40)")
    userinfo, _, host_and_port = authority.rpartition("@")
    # Which of several @ ends the password, or whether a slash does, is anybody's guess.
    if "@" in tail or "@" in userinfo or ("@" in authority and not _is_encoded(userinfo, text)):
        raise ValueError(PERCENT_ENCODE)
    if NOT_IN_URL.search(text):
        raise ValueError("must be a URL without spaces, control characters and backslashes")
    if re.search(r"[?#]", tail):
        raise ValueError("must be a URL without a query or fragment")
    return SettingUrl(found[1].lower(), userinfo, *_host_and_port(host_and_port), tail)


def _is_encoded(userinfo: str, text: str) -> bool:
    """Return whether the user name and the password of a URL can be decoded."""
    try:
        unquote(userinfo, errors="strict")
    except UnicodeError:
        return False
    return not (_NOT_IN_USERINFO.search(userinfo) or NOT_IN_URL.search(text))


def _host_and_port(text: str) -> tuple[str, int | None]:
    """Return a host as it is dialled, and the port if there is one."""
    if (found := _HOST_AND_PORT.fullmatch(text)) is None:
        raise ValueError(HOST)
    host, port = found[1], None if found[2] is None else int(found[2])
    try:
        host = f"[{ipaddress.IPv6Address(host[1:-1])}]" if host.startswith("[") else to_a_labels(host)
    except ValueError:
        host = ""
    if not _HOST.fullmatch(host) or (port is not None and not 1 <= port <= 65535):
        raise ValueError(HOST)
    return host, port
