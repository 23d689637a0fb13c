"""The egress guard: where a request made on a customer's word may go (§2.4).

It checks twice. At enqueue it parses the URL and checks the addresses that its name has now, so that an author
learns of a mistake at once. At delivery every address really dialled is checked, which stops DNS rebinding. Where
somebody else dials (a host's own transport, a proxy), the name is resolved and checked just before, and a name that
has no address fails the attempt.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import quote

from flowactions_plugin.errors import EgressRefused, SendFailed
from flowactions_plugin.hostnames import to_a_labels
from flowactions_plugin.settings_readers import Network

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host name and port; raises ``OSError`` when there are none."""

_WAYS_OUT: Final = (
    " They are with FLOWACTIONS_ENVIRONMENT=development, and to the networks in FLOWACTIONS_EGRESS_ALLOW."
)

RESOLVE_SECONDS: Final = 1.0
"""How long an enqueue waits for a name. A name that has no answer by then is not blocked: delivery retries."""

MAX_URL_LENGTH: Final = 2048

_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)", re.IGNORECASE)
_NOT_IN_URL = re.compile(r"[^!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]")
_FORBIDDEN_IN_URL = re.compile("[\x00-\x20\x7f-\x9f\\\\\\s\ud800-\udfff]")


def _networks(*rows: tuple[str, str]) -> tuple[tuple[Network, str], ...]:
    return tuple((ipaddress.ip_network(network), rule) for network, rule in rows)


METADATA: Final = _networks(
    ("169.254.0.0/16", "link-local and metadata"),
    ("100.100.100.200/32", "metadata"),
    ("168.63.129.16/32", "metadata"),
    ("fd00:42::42/128", "metadata"),
    ("fd00:c1::/32", "metadata"),
    ("fd00:ec2::/32", "metadata"),
    ("fd20:ce::/32", "metadata"),
)
"""Where clouds give credentials to whoever asks. Only a network that is no wider than the one here allows them."""

NEVER: Final = _networks(
    ("0.0.0.0/8", "this host"),
    ("192.0.0.0/24", "protocol assignments"),
    ("192.0.2.0/24", "documentation"),
    ("192.88.99.0/24", "6to4 relay"),
    ("198.18.0.0/15", "benchmarking"),
    ("198.51.100.0/24", "documentation"),
    ("203.0.113.0/24", "documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/128", "this host"),
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
    """A URL that was parsed once, and is dialled as it was parsed.

    Attributes:
        url: as authored, but with an international host name in A-labels.
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
    bracketed = f"[{host}]" if ":" in host else host
    tail = rest[len(authority) :]
    if not authority.isascii():
        url = f"{scheme}://{bracketed}{'' if port is None else f':{port}'}{tail}"
    if port is None:
        port = 443 if scheme == "https" else 80
    return Destination(url, scheme, host, port, _target(tail), f"{scheme}://{bracketed}:{port}")


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
    try:
        host = to_a_labels(host).lower()
    except ValueError:
        raise EgressRefused("The URL's host is not an international name that can be looked up.") from None
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
        allow: networks allowed whatever the rules say. What is metadata needs a network that is as narrow as the
            rule's own.
        resolve: asked for a name's addresses; ``None`` where only a proxy can look names up: then the form of
            URLs and literal addresses are all that is checked.
    """

    def __init__(self, *, development: bool, resolve: Resolve | None, allow: Sequence[Network] = ()) -> None:
        self._development = development
        self._allow = tuple(allow)
        self._resolve = resolve

    def refusal(self, address: Address) -> str | None:
        """Give the rule that forbids an address, ``None`` when none does."""
        return self._rule(address, development=self._development)

    def _rule(self, address: Address, *, development: bool) -> str | None:
        embedded = _embedded_v4(address) if isinstance(address, ipaddress.IPv6Address) else ()
        # Before what is allowed: a wide network, of private addresses say, does not open the metadata in it.
        for each in (address, *embedded):
            if rule := self._metadata_rule(each):
                return rule if each is address else f"{rule}, as {each} in IPv6"
        if _within(address, self._allow):
            return None
        if not embedded:
            return _table_rule(address, development=development)
        for each in embedded:
            if rule := self._rule(each, development=development) or (None if development else "IPv4"):
                return f"{rule}, as {each} in IPv6"
        return None

    def _metadata_rule(self, address: Address) -> str | None:
        for network, rule in METADATA:
            if address in network:
                named = [each for each in self._allow if each.prefixlen >= network.prefixlen]
                return None if _within(address, named) else rule
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
        if rule is None:
            return
        message = f"Requests to {address} are not allowed ({rule})."
        if not self._development and self._rule(address, development=True) is None:
            message += _WAYS_OUT
        raise EgressRefused(message)

    async def validate(self, url: str) -> Destination:
        """Parse a URL, and leave its addresses to what dials them.

        Raises:
            EgressRefused: the URL is not allowed; the message says why.
        """
        return parse_destination(url)

    async def check(self, url: str) -> Destination:
        """Parse a URL at enqueue, and check every address that its host has now.

        A name that has no address within a second is let through: delivery looks again, and retries.

        Raises:
            EgressRefused: the URL or one of the addresses is not allowed; the message says why.
        """
        destination = parse_destination(url)
        if self._literal_or_unresolved(destination.host):
            return destination
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                await self.addresses(destination.host, destination.port)
        except (OSError, TimeoutError):
            pass
        return destination

    async def resolve(self, url: str) -> Destination:
        """Parse a URL at delivery, for a transport that does not check what it dials.

        The caller bounds the time. A name that cannot be looked up is no destination: what it leads to by the time
        the transport looks, nobody has checked.

        Raises:
            EgressRefused: the URL or one of the addresses is not allowed; the message says why.
            SendFailed: the name has no address now.
        """
        destination = parse_destination(url)
        if self._literal_or_unresolved(destination.host):
            return destination
        try:
            await self.addresses(destination.host, destination.port)
        except OSError as exc:
            raise SendFailed(f"{destination.host} has no address now: {exc}") from exc
        return destination

    def _literal_or_unresolved(self, host: str) -> bool:
        """Check a host that is an address; tell whether there is nothing else to check."""
        if not _is_address(host):
            return self._resolve is None
        self.check_address(host)
        return True

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Give the addresses of a name, all of them checked.

        Raises:
            EgressRefused: one of them is not allowed.
            OSError: there are none.
        """
        if self._resolve is None:
            raise OSError("names are looked up by the egress proxy only")
        try:
            found = await self._resolve(host, port)
        except UnicodeError as exc:
            raise OSError(f"{host!r} is not a name that can be looked up") from exc
        if not found:
            raise OSError(f"{host!r} has no address")
        for address in found:
            self.check_address(address)
        return found


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _table_rule(address: Address, *, development: bool) -> str | None:
    for network, rule in NEVER if development else (*NEVER, *PRIVATE):
        if address in network:
            return rule
    private = _within(address, [network for network, _ in PRIVATE])
    if address.version == 6 and address not in GLOBAL_V6 and not private:
        return "not globally routed"
    return None


def _within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def _embedded_v4(address: ipaddress.IPv6Address) -> Sequence[ipaddress.IPv4Address]:
    """Give the IPv4 addresses that an IPv6 address may stand for: mapped, compatible, NAT64, 6to4, Teredo."""
    number = int(address)
    high = number >> 32
    found: tuple[int, ...] = ()
    if 1 < number <= 0xFFFFFFFF or high in {0xFFFF, 0xFFFF0000} or high == 0x0064FF9B << 64:
        found = (number,)
    elif number >> 80 == 0x0064FF9B0001:
        # A network's own prefix for NAT64 may be of any length: at its end, or around the eight bits that are zero.
        found = (number, (number >> 64 & 0xFFFF) << 16 | number >> 40 & 0xFFFF)
    elif number >> 112 == 0x2002:
        found = (number >> 80,)
    elif number >> 96 == 0x20010000:
        found = (number ^ 0xFFFFFFFF,)
    return [ipaddress.IPv4Address(each & 0xFFFFFFFF) for each in found]
