"""The egress guard: where a request made on a customer's word may go (§2.4).

It looks twice. At enqueue it reads the URL and the addresses that its name has now, so that an author hears
of a mistake at once. At delivery it looks at every address really dialled, so that a name that has changed
its mind since then meets the same rules.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.settings import Network

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host name and port; raises ``OSError`` when there are none."""

RESOLVE_SECONDS: Final = 1.0
"""How long an enqueue waits for a name. A name that has no answer by then is not blocked: delivery retries."""

MAX_URL_LENGTH: Final = 2048

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")
_FORBIDDEN_IN_URL = re.compile("[\x00-\x20\x7f-\x9f\\\\\\s\ud800-\udfff]")


def _networks(*rows: tuple[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ipaddress.ip_network(network), rule) for network, rule in rows)


NEVER: Final = _networks(
    ("0.0.0.0/8", "this host"),
    ("169.254.0.0/16", "link-local and metadata"),
    ("100.100.100.200/32", "metadata"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relay"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "this host"),
    ("fd00:ec2::/32", "metadata"),
    ("fe80::/10", "link-local"),
    ("2001::/23", "protocol assignments"),
    ("2001:db8::/32", "documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "documentation"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)
"""Refused everywhere."""

PRIVATE: Final = _networks(
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "carrier-grade NAT"),
    ("127.0.0.0/8", "loopback"),
    ("172.16.0.0/12", "private"),
    ("192.168.0.0/16", "private"),
    ("::1/128", "loopback"),
    ("fc00::/7", "private"),
)
"""Refused in production, allowed in development."""

GLOBAL_V6: Final = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses that are routed globally."""


class Destination(NamedTuple):
    """A URL that was read once, and is dialled as it was read.

    Attributes:
        url: as authored.
        scheme: ``http`` or ``https``.
        host: in lower case, without brackets.
        port: the port that is dialled.
        target: path and query as they are sent: as authored, except that characters that no URL may hold are
            percent-encoded; without the fragment.
        key: scheme, host and port, the unit of per-destination limits.
    """

    url: str
    scheme: str
    host: str
    port: int
    target: str
    key: str


@lru_cache(maxsize=4096)
def parse_destination(url: str) -> Destination:
    """Read a webhook URL.

    Raises:
        EgressRefused: it is no URL that the service sends to; the message says why.
    """
    if not url:
        raise EgressRefused("The URL is missing.")
    if len(url) > MAX_URL_LENGTH:
        raise EgressRefused(f"The URL is longer than {MAX_URL_LENGTH} characters.")
    if _FORBIDDEN_IN_URL.search(url):
        raise EgressRefused("The URL holds a space, a control character or a backslash.")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in {"http", "https"}:
        raise EgressRefused("The URL must start with http:// or https://.")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" in authority:
        raise EgressRefused("The URL may not hold a user name or password.")
    host, port = _host_and_port(authority)
    if port is None:
        port = 443 if scheme == "https" else 80
    bracketed = f"[{host}]" if ":" in host else host
    target = _target(rest[len(authority) :])
    return Destination(url, scheme, host, port, target, f"{scheme}://{bracketed}:{port}")


def _target(text: str) -> str:
    text = text.partition("#")[0]
    return _NOT_IN_URL.sub(lambda found: quote(found[0]), text if text.startswith("/") else f"/{text}")


def _host_and_port(authority: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(?::([0-9]{1,5}))?", authority, re.ASCII)
    if match is None:
        raise EgressRefused("The URL's host or port is not well formed.")
    host, port = match.group(1), match.group(2)
    if port is not None and not 1 <= int(port) <= 65535:
        raise EgressRefused("The URL's port must be from 1 to 65535.")
    if host.startswith("["):
        try:
            host = str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise EgressRefused("The URL's host is not an IPv6 address.") from None
    else:
        host = _host_name(host)
    return host, None if port is None else int(port)


def _host_name(host: str) -> str:
    """Give a host name or dotted IPv4 address in lower case; odd spellings of numbers are refused."""
    if not host.isascii():
        raise EgressRefused("The URL's host must be written in ASCII (an international name as xn--…).")
    host = host.lower()
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise EgressRefused("The URL's host is not a host name.")
    if re.fullmatch(r"[0-9]+|0x[0-9a-f]*", labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise EgressRefused("The URL's host is not an IPv4 address in its usual spelling.") from None
    return host


class EgressGuard:
    """The rules on addresses, for one host.

    Args:
        development: whether loopback and private networks are allowed.
        allow: networks allowed whatever the rules say.
        resolve: asked for a name's addresses, at enqueue and at delivery.
    """

    def __init__(self, *, development: bool, resolve: Resolve, allow: Sequence[Network] = ()) -> None:
        self._development = development
        self._allow = tuple(allow)
        self._resolve = resolve

    def refusal(self, address: Address) -> str | None:
        """Give the rule that forbids an address, ``None`` when none does."""
        if _within(address, self._allow):
            return None
        if isinstance(address, ipaddress.IPv6Address) and (embedded := _embedded_v4(address)):
            rule = self.refusal(embedded) or (None if self._development else "IPv4")
            return rule and f"{rule}, as {embedded} in IPv6"
        rules = NEVER if self._development else (*NEVER, *PRIVATE)
        for network, rule in rules:
            if address in network:
                return rule
        private = _within(address, [network for network, _ in PRIVATE])
        if address.version == 6 and address not in GLOBAL_V6 and not private:
            return "not globally routed"
        return None

    def check_address(self, text: str) -> None:
        """Check an address as it is about to be dialled.

        Raises:
            EgressRefused: a rule forbids it; the message names both.
        """
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            raise EgressRefused(f"{text!r} is not an address.") from None
        rule = self.refusal(address)
        if rule is not None:
            raise EgressRefused(f"Requests to {address} are not allowed ({rule}).")

    async def read(self, url: str) -> Destination:
        """Read a URL, and leave its addresses to who dials them.

        Raises:
            EgressRefused: the URL is not allowed; the message says why.
        """
        return parse_destination(url)

    async def check(self, url: str) -> Destination:
        """Read a URL and check every address that its host has now.

        Raises:
            EgressRefused: the URL or one of the addresses is not allowed; the message says why.
        """
        destination = parse_destination(url)
        if _is_address(destination.host):
            self.check_address(destination.host)
            return destination
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                await self.addresses(destination.host, destination.port)
        except (OSError, TimeoutError):
            # Not reachable now is no reason to forbid: delivery looks again, and retries.
            pass
        return destination

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Give the addresses of a name, all of them checked.

        Raises:
            EgressRefused: one of them is not allowed.
            OSError: there are none.
        """
        try:
            found = await self._resolve(host, port)
        except UnicodeError as exc:
            raise OSError(f"{host!r} is not a name that can be looked up") from exc
        for address in found:
            self.check_address(address)
        return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _embedded_v4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Give the IPv4 address that an IPv6 address stands for: mapped, compatible, NAT64, 6to4, Teredo."""
    number = int(address)
    high = number >> 32
    if 1 < number <= 0xFFFFFFFF or high in {0xFFFF, 0xFFFF0000} or high == 0x0064FF9B << 64:
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if number >> 80 == 0x0064FF9B0001:
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    if number >> 112 == 0x2002:
        return ipaddress.IPv4Address(number >> 80 & 0xFFFFFFFF)
    if number >> 96 == 0x20010000:
        return ipaddress.IPv4Address(number & 0xFFFFFFFF ^ 0xFFFFFFFF)
    return None
