"""The egress guard: where a request to a URL of a customer may go.

It checks twice. At enqueue it parses the URL and checks the addresses that its name has now, so that an author
learns of a mistake at once. At delivery every address that is dialled is checked, which prevents DNS rebinding. Where a
host's own transport or a proxy dials, the name is resolved and checked just before, and a name that has no address
fails the attempt.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from flowactions_plugin.egress.destination import Destination, parse_destination
from flowactions_plugin.egress.transport_errors import no_address
from flowactions_plugin.errors import EgressRefused, SendFailed
from flowactions_plugin.settings.readers import Allowed, Network

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host name and port; raises ``OSError`` when there are none."""

HOW_TO_ALLOW: Final = " They are with FLOWACTIONS_ENVIRONMENT=development, and to the networks and names in FLOWACTIONS_EGRESS_ALLOW."
"""The end of a refusal, for operators."""

RESOLVE_SECONDS: Final = 1.0
"""How long an enqueue waits for a lookup. A name without an answer by then is not refused: delivery retries."""


def _networks(rules: Mapping[str, str]) -> tuple[tuple[Network, str], ...]:
    """Return networks, each with its rule, from a rule's networks in one text."""
    return tuple((ipaddress.ip_network(each), rule) for rule, text in rules.items() for each in text.split())


METADATA: Final = _networks(
    {
        "link-local and metadata": "169.254.0.0/16",
        "metadata": "100.100.100.200/32 168.63.129.16/32 fd00:42::42/128 fd00:c1::/32 fd00:ec2::/32 fd20:ce::/32",
    }
)
"""Where clouds return credentials without authentication. To allow one, a network must be no wider than it is here."""

NEVER: Final = _networks(
    {
        "this host": "0.0.0.0/8 ::/128",
        "protocol assignments": "192.0.0.0/24 2001::/23",
        "documentation": "192.0.2.0/24 198.51.100.0/24 203.0.113.0/24 2001:db8::/32 3fff::/20",
        "6to4 relay": "192.88.99.0/24",
        "6to4": "2002::/16",
        "benchmarking": "198.18.0.0/15",
        "multicast": "224.0.0.0/4 ff00::/8",
        "reserved": "240.0.0.0/4",
        "link-local": "fe80::/10",
        "site-local": "fec0::/10",
    }
)
"""Refused everywhere."""

PRIVATE: Final = _networks(
    {
        "private": "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7",
        "carrier-grade NAT": "100.64.0.0/10",
        "loopback": "127.0.0.0/8 ::1/128",
    }
)
"""Refused in production, allowed in development."""

GLOBAL_V6: Final = ipaddress.ip_network("2000::/3")
"""The only IPv6 addresses that are routed globally."""

DNS64: Final = ipaddress.ip_network("64:ff9b::/96")
"""The well-known prefix (RFC 6052): networks that have IPv6 alone synthesize such addresses for names that have only IPv4."""


class EgressGuard:
    """The rules on addresses, for one host (§2.4).

    Args:
        development: whether loopback and private networks are allowed.
        allow: networks that are allowed although a rule forbids them, and names that may have addresses as in development.
            Metadata needs a network that is as narrow as the rule's own.
        resolve: looks up a name's addresses; ``None`` where only a proxy can: then only the form of URLs and
            literal addresses are checked.
    """

    def __init__(self, *, development: bool, resolve: Resolve | None, allow: Sequence[Allowed] = ()) -> None:
        self._development = development
        self._allow = tuple(each for each in allow if not isinstance(each, str))
        names = [each for each in allow if isinstance(each, str)]
        self._names = frozenset(names)
        self._endings = tuple(each[1:] for each in names if each.startswith("*"))
        self._resolve = resolve
        # The rules do not change, and going through them costs more than the rest of an enqueue's checks.
        self._verdict = lru_cache(maxsize=4096)(self._judged)
        self._parse = lru_cache(maxsize=4096)(parse_destination)

    def _rule(self, address: Address, *, development: bool) -> str | None:
        """Return the rule that forbids an address, or one that it embeds."""
        embedded = _embedded_v4(address) if isinstance(address, ipaddress.IPv6Address) else ()
        # Checked before the allowed networks: a wide one, of private addresses say, does not allow the metadata in it.
        for each in (address, *embedded):
            if rule := self._metadata_rule(each):
                return rule if each is address else f"{rule}, as {each} in IPv6"
        allowed = _within(address, self._allow)
        if not embedded:
            return None if allowed else _table_rule(address, development=development)
        # An allowed network of IPv6 does not open what its addresses translate to.
        for each in embedded:
            if rule := self._rule(each, development=development):
                return f"{rule}, as {each} in IPv6"
        return None if allowed or development or address in DNS64 else f"IPv4, as {embedded[0]} in IPv6"

    def _metadata_rule(self, address: Address) -> str | None:
        """Return the rule, unless the allowed networks name the address as narrowly."""
        for network, rule in METADATA:
            if address in network:
                named = [each for each in self._allow if each.prefixlen >= network.prefixlen]
                return None if _within(address, named) else rule
        return None

    def check_address(self, text: str, host: str = "") -> None:
        """Check an address before it is dialled; ``host`` is the name that was looked up, if one was.

        Raises:
            EgressRefused: a rule forbids it; the message names both.
        """
        message = self._verdict(text, development=self._development or self._is_named(host))
        if message is not None:
            raise EgressRefused(message)

    def _is_named(self, host: str) -> bool:
        """Return whether the setting has a name, or ``*`` in front of a dot and what follows in the name."""
        name = host.removesuffix(".")
        return name in self._names or name.endswith(self._endings)

    def _judged(self, text: str, *, development: bool) -> str | None:
        """Return why an address is refused; ``None`` when it is not."""
        try:
            address = ipaddress.ip_address(text.partition("%")[0])
        except ValueError:
            return f"{text!r} is not an address."
        rule = self._rule(address, development=development)
        if rule is None:
            return None
        message = f"Requests to {address} are not allowed ({rule})."
        if not development and self._rule(address, development=True) is None:
            message += HOW_TO_ALLOW
        return message

    async def validate(self, url: str) -> Destination:
        """Parse a URL for a transport that checks the addresses that it dials.

        Raises:
            EgressRefused: the URL is not allowed; the message says why.
        """
        return self._parse(url)

    async def look_up(self, url: str) -> tuple[Destination, bool]:
        """Parse a URL at enqueue, and check every address that its host has now.

        A name that has no address within a second passes: delivery looks it up again, and retries.

        Returns:
            Also whether the host is a name that has no address now; ``False``, too, if nobody can tell: behind an
            egress proxy, and when the lookup takes too long.

        Raises:
            EgressRefused: the URL or one of the addresses is not allowed; the message says why.
        """
        destination = self._parse(url)
        if not self._is_checked(destination.host):
            try:
                async with asyncio.timeout(RESOLVE_SECONDS):
                    await self.addresses(destination.host, destination.port)
            except (TimeoutError, RuntimeError):  # no answer yet, or no thread that could ask
                pass
            except OSError:
                return destination, True
        return destination, False

    async def resolve(self, url: str) -> Destination:
        """Parse a URL at delivery, for a transport that does not check what it dials.

        The caller bounds the time. A name that has no address fails: the addresses that the transport finds later would
        be unchecked.

        Raises:
            EgressRefused: the URL or one of the addresses is not allowed; the message says why.
            SendFailed: the name has no address now.
        """
        destination = self._parse(url)
        if not self._is_checked(destination.host):
            try:
                await self.addresses(destination.host, destination.port)
            except OSError as exc:
                raise SendFailed(no_address(destination.host, exc)) from exc
        return destination

    def _is_checked(self, host: str) -> bool:
        """Check a host that is an address; return whether there is nothing left to look up here."""
        if not is_address(host):
            return self._resolve is None
        self.check_address(host)
        return True

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a name, all of them checked.

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
            self.check_address(address, host)
        return found


def is_address(host: str) -> bool:
    """Return whether a host is an IP address, without brackets, and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def networks_of(text: str) -> str:
    """Return the networks to allow, as the setting has them, so that an address may be reached; with what it embeds."""
    address = ipaddress.ip_address(text)
    embedded = _embedded_v4(address) if isinstance(address, ipaddress.IPv6Address) else ()
    around = () if address in DNS64 else (address,)
    return ",".join(str(ipaddress.ip_network(each)) for each in (*around, *embedded))


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
    """Return the IPv4 addresses that an IPv6 address may embed: mapped, compatible, NAT64, 6to4, Teredo."""
    number = int(address)
    high = number >> 32
    found: tuple[int, ...] = ()
    if 1 < number <= 0xFFFFFFFF or high in {0xFFFF, 0xFFFF0000} or high == 0x0064FF9B << 64:
        found = (number,)
    elif number >> 80 == 0x0064FF9B0001:
        # A NAT64 prefix of a network's own (RFC 8215) may have 48, 56, 64 or 96 bits (RFC 6052 §2.2). The address follows
        # the prefix, around the eight zero bits from bit 64 on.
        around = number >> 64 << 56 | number & 0xFFFFFFFFFFFFFF
        places = (number, around >> 40, around >> 32, around >> 24)
        found = tuple(each for each in places if each & 0xFF000000)  # no address begins with 0
    elif number >> 112 == 0x2002:
        found = (number >> 80,)
    elif number >> 96 == 0x20010000:
        found = (number ^ 0xFFFFFFFF,)
    return [ipaddress.IPv4Address(each & 0xFFFFFFFF) for each in found]
