from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.errors import EgressRefused
from flowactions_plugin.outbox.egress import EgressGuard, parse_destination
from tests.recorder import recorder

FORBIDDEN_EVERYWHERE = [
    "0.0.0.0",  # noqa: S104
    "0.1.2.3",
    "169.254.169.254",
    "169.254.0.1",
    "100.100.100.200",
    "192.0.0.1",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "239.255.255.250",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "2001:db8::1",
    "2001:2::1",
    "3fff::1",
    "100::1",
    "5f00::1",
    "fd00:ec2::254",
    "::ffff:169.254.169.254",
    "::ffff:0:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::",
    "2001:0:0:0:0:0:5601:5601",
]
FORBIDDEN_IN_PRODUCTION = [
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "100.64.0.1",
    "::1",
    "fc00::1",
    "fd12:3456::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "::ffff:8.8.8.8",
]
ALLOWED = ["8.8.8.8", "1.1.1.1", "172.15.0.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]

MALFORMED = [
    "",
    "example.com",
    "//example.com",
    "ftp://example.com",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "http:/example.com",
    "http:example.com",
    "http://",
    "http:///path",
    "http://?x",
    "http://user@example.com",
    "http://user:pw@example.com",
    "http://example.com@127.0.0.1",
    "http://127.0.0.1\\@example.com",
    "http://example.com\\..\\",
    "http://exa mple.com",
    " http://example.com",
    "http://example.com/a b",
    "http://example.com/\r\nx",
    "http://example.com/\x00",
    "http://example.com\t",
    "http://example.com/\ud800",
    "http://example.com/\u2028",
    "http://example.com:0",
    "http://example.com:65536",
    "http://example.com:abc",
    "http://example.com:-1",
    "http://example.com:",
    "http://[::1",
    "http://::1",
    "http://[::1%25eth0]",
    "http://[fe80::1%eth0]",
    "http://[1.2.3.4]",
    "http://[v1.x]",
    "http://2130706433",
    "http://0x7f000001",
    "http://0x7f.1",
    "http://017700000001",
    "http://127.1",
    "http://127.0.1",
    "http://0177.0.0.1",
    "http://127.0.0.0x1",
    "http://127.0.0.1.",
    "http://１２７.0.0.1",
    "http://①27.0.0.1",
    "http://127。0。0。1",
    "http://exämple.com",
    "http://-example.com",
    "http://example..com",
    "http://.example.com",
    f"http://{'a' * 64}.com",
    f"http://{'a.' * 127}com",
    f"http://example.com/{'a' * 2048}",
    "http://example.com%2f@127.0.0.1",
    "http://%31%32%37.0.0.1",
]


def guard(
    *, development: bool = False, allow: Sequence[str] = (), addresses: Sequence[str] = ()
) -> EgressGuard:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if not addresses:
            raise OSError("no such host")
        return addresses

    return EgressGuard(
        development=development, allow=[ipaddress.ip_network(text) for text in allow], resolve=resolve
    )


def url_of(address: str) -> str:
    return f"https://[{address}]/x" if ":" in address else f"https://{address}/x"


@pytest.mark.parametrize("address", [*FORBIDDEN_EVERYWHERE, *FORBIDDEN_IN_PRODUCTION])
async def test_production_refuses_what_is_not_global(address: str) -> None:
    """As a literal and as the answer for a name, the address is refused with its rule (§2.4)."""
    with pytest.raises(EgressRefused, match=r"are not allowed \(.+\)"):
        await guard().check(url_of(address))
    with pytest.raises(EgressRefused):
        await guard(addresses=["8.8.8.8", address]).check("https://example.com/")


@pytest.mark.parametrize("address", FORBIDDEN_EVERYWHERE)
async def test_development_still_refuses_metadata_and_its_like(address: str) -> None:
    """Link-local, metadata and special ranges are never reached."""
    with pytest.raises(EgressRefused):
        await guard(development=True).check(url_of(address))


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "192.168.1.1", "::1", "fd12::1", "::ffff:127.0.0.1"]
)
async def test_development_reaches_this_machine_and_its_network(address: str) -> None:
    """Localhost works in development (§2.4)."""
    assert (await guard(development=True).check(url_of(address))).port == 443


@pytest.mark.parametrize("address", ALLOWED)
async def test_global_addresses_are_allowed(address: str) -> None:
    """The neighbours of forbidden ranges are not refused with them."""
    for development in (True, False):
        await guard(development=development).check(url_of(address))


async def test_an_allowed_network_overrules() -> None:
    """A self-hoster's network passes; the one beside it does not."""
    allowing = guard(allow=["10.1.0.0/16"])
    await allowing.check("http://10.1.2.3/")
    with pytest.raises(EgressRefused):
        await allowing.check("http://10.2.0.1/")


async def test_a_name_without_an_address_is_not_refused() -> None:
    """Delivery will look again, and retry."""
    destination = await guard().check("https://nowhere.example.com:8443/a?b=c#d")
    assert (destination.host, destination.port) == ("nowhere.example.com", 8443)
    assert destination.key == "https://nowhere.example.com:8443"
    assert destination.url == "https://nowhere.example.com:8443/a?b=c#d"


@pytest.mark.parametrize("url", MALFORMED)
def test_a_url_that_two_parsers_could_read_differently_is_refused(url: str) -> None:
    """Odd spellings are refused as they are, in development, too."""
    with pytest.raises(EgressRefused):
        parse_destination(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "missing"),
        ("http://user@example.com", "user name or password"),
        ("ftp://example.com", "must start with http:// or https://"),
        ("http://exam ple.com", "a space, a control character or a backslash"),
        ("http://example.com:0", "port must be from 1 to 65535"),
        ("http://127.1", "not an IPv4 address in its usual spelling"),
        ("http://exämple.com", "must be written in ASCII"),
        (f"http://example.com/{'a' * 2048}", "longer than 2048 characters"),
    ],
)
def test_a_refusal_says_what_is_wrong_with_the_url(url: str, said: str) -> None:
    """An author can mend the URL from the message alone."""
    with pytest.raises(EgressRefused, match=said):
        parse_destination(url)


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.com", "http://example.com:80"),
        ("HTTPS://EXAMPLE.com/", "https://example.com:443"),
        ("https://xn--exmple-cua.com?x", "https://xn--exmple-cua.com:443"),
        ("http://example.com.:8080/", "http://example.com.:8080"),
        ("http://[2606:4700:0:0::1111]:81/", "http://[2606:4700::1111]:81"),
        ("http://a_b.example.com/", "http://a_b.example.com:80"),
        ("http://localhost:3000/x", "http://localhost:3000"),
        ("http://1.2.3.4/", "http://1.2.3.4:80"),
        ("http://example.com/@x:y", "http://example.com:80"),
    ],
)
def test_usual_urls_are_read(url: str, key: str) -> None:
    """Scheme, host and port come out in one form."""
    assert parse_destination(url).key == key


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the reader raise anything else."""
    for url in (text, f"http://{text}", f"https://example.com{text}"):
        try:
            parse_destination(url)
        except EgressRefused:
            continue


class TestDialling:
    """The transport looks at the address really dialled."""

    async def send(self, transport: httpx.AsyncBaseTransport, url: str) -> Any:
        request = httpx.Request("POST", url, content=b"{}")
        try:
            response = await transport.handle_async_request(request)
            await response.aclose()
        finally:
            await transport.aclose()
        return response.status_code

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.1", "2130706433", "0x7f.1", "0"])
    async def test_no_packet_reaches_a_forbidden_address(self, host: str) -> None:
        """However loopback is spelt, production does not connect."""
        async with recorder() as receiver:
            url = receiver.url.replace("127.0.0.1", host)
            with pytest.raises((EgressRefused, httpx.UnsupportedProtocol)):
                await self.send(guard().transport(5), url)
            assert receiver.requests == []

    async def test_an_allowed_address_is_dialled(self) -> None:
        """In development, loopback is reached."""
        async with recorder() as receiver:
            assert await self.send(guard(development=True).transport(5), receiver.url) == 200
            assert len(receiver.requests) == 1

    async def test_proxies_of_the_environment_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A proxy variable does not lead deliveries elsewhere."""
        async with recorder() as proxy, recorder() as receiver:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            await self.send(guard(development=True).transport(5), receiver.url)
            assert (len(proxy.requests), len(receiver.requests)) == (0, 1)
