from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.guard import HOW_TO_ALLOW, EgressGuard
from flowactions_plugin.egress.host_transport import HostTransport
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.errors import EgressRefused
from tests.loopback import listening
from tests.plugin.egress.addresses import (
    ALLOWED,
    EVERYWHERE,
    IN_PRODUCTION,
    MALFORMED,
    REFUSED_IN_PRODUCTION,
    SAMPLE,
    SAMPLE_IN_PRODUCTION,
    guard,
    url_of,
    words,
)
from tests.queueing import Queue, a_schedule
from tests.recorder import recorder
from tests.sending import attempt


@pytest.mark.parametrize(("rule", "address"), words(EVERYWHERE))
def test_an_address_is_refused_everywhere_by_its_rule(rule: str, address: str) -> None:
    """In development, too; the settings are not named (§2.4)."""
    for development in (True, False):
        with pytest.raises(EgressRefused) as refused:
            guard(development=development).check_address(address)
        assert str(refused.value).endswith(f"not allowed ({rule}).")


@pytest.mark.parametrize(("rule", "address"), words(IN_PRODUCTION))
def test_an_address_is_refused_in_production_by_its_rule(rule: str, address: str) -> None:
    """This machine and its network; the settings that allow it are named (§2.4)."""
    with pytest.raises(EgressRefused) as refused:
        guard().check_address(address)
    assert str(refused.value).endswith(f"not allowed ({rule}).{HOW_TO_ALLOW}")
    guard(development=True).check_address(address)


@pytest.mark.parametrize("address", ALLOWED)
def test_global_addresses_are_allowed(address: str) -> None:
    """The neighbours of forbidden ranges are not refused with them."""
    for development in (True, False):
        guard(development=development).check_address(address)


@pytest.mark.parametrize(("reason", "url"), MALFORMED)
async def test_each_spelling_is_refused(reason: str, url: str) -> None:
    """In development, too, with a reason from which an author can correct the URL."""
    for development in (True, False):
        with pytest.raises(EgressRefused, match=re.escape(reason)):
            await guard(development=development).look_up(url.format(port=8080))


@pytest.mark.parametrize("url", REFUSED_IN_PRODUCTION)
async def test_each_spelling_of_this_machine_is_refused_in_production(url: str) -> None:
    """Names and mapped characters lead to it, too."""
    url = url.format(port=8080)
    with pytest.raises(EgressRefused, match=r"are not allowed \(.+\)") as refused:
        await guard().look_up(url)
    assert str(refused.value).endswith(HOW_TO_ALLOW)
    await guard(development=True).look_up(url)


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "2001:db8::1", "::ffff:8.8.8.8"])
async def test_one_forbidden_address_of_a_name_is_enough(address: str) -> None:
    """A name is refused when any of its addresses is, and the reason names that one."""

    async def both(host: str, port: int) -> Sequence[str]:
        return ["8.8.8.8", address]

    with pytest.raises(EgressRefused, match=r"Requests to .+ are not allowed \(.+\)"):
        await guard(resolve=both).look_up("https://example.com/")


async def test_an_allowed_network_overrules_the_rules() -> None:
    """A self-hoster's network passes; the one beside it does not."""
    allowing = guard(allow=["10.1.0.0/16"])
    await allowing.look_up("http://10.1.2.3/")
    with pytest.raises(EgressRefused):
        await allowing.look_up("http://10.2.0.1/")


@pytest.mark.parametrize(
    ("address", "allow", "refused"),
    [
        # The well-known prefix: as the address behind it, whatever is allowed around it.
        ("64:ff9b::8.8.8.8", [], None),
        ("64:ff9b::a00:1", [], "private, as 10.0.0.1 in IPv6"),
        ("64:ff9b::a00:1", ["64:ff9b::/96"], "private, as 10.0.0.1 in IPv6"),
        ("64:ff9b::a00:1", ["::/0"], "private, as 10.0.0.1 in IPv6"),
        ("64:ff9b::a00:1", ["10.0.0.0/8"], None),
        # Others are closed, until they are allowed.
        ("::ffff:8.8.8.8", [], "IPv4, as 8.8.8.8 in IPv6"),
        ("::ffff:10.0.0.1", ["10.0.0.0/8"], "IPv4, as 10.0.0.1 in IPv6"),
        ("::ffff:10.0.0.1", ["::ffff:0:0/96"], "private, as 10.0.0.1 in IPv6"),
        ("::ffff:10.0.0.1", ["::ffff:0:0/96", "10.0.0.0/8"], None),
        ("2002:808:808::", ["2002::/16"], None),
        ("2002:a00:1::", ["2002::/16"], "private, as 10.0.0.1 in IPv6"),
        ("64:ff9b:1::8.8.8.8", [], "IPv4, as 8.8.8.8 in IPv6"),
        ("64:ff9b:1::8.8.8.8", ["64:ff9b:1::/96"], None),
        ("64:ff9b:1::10.0.0.1", ["64:ff9b:1::/96"], "private, as 10.0.0.1 in IPv6"),
        ("64:ff9b:1:808:8:800::", ["64:ff9b:1::/48"], None),
        ("64:ff9b:1:7f00:0:100::", ["64:ff9b:1::/48"], "loopback, as 127.0.0.1 in IPv6"),
    ],
)
async def test_addresses_that_embed_ipv4_are_judged_by_it(
    address: str, allow: Sequence[str], refused: str | None
) -> None:
    """A synthesized one as what it leads to; the rest stay refused unless allowed, and are then judged so, too (§2.4)."""
    guarding = guard(allow=allow)
    if refused is None:
        await guarding.look_up(url_of(address))
    else:
        with pytest.raises(EgressRefused, match=re.escape(f"({refused})")):
            await guarding.look_up(url_of(address))


@pytest.mark.parametrize(
    ("address", "wide", "narrow"),
    [
        ("169.254.169.254", "169.0.0.0/8", "169.254.169.254/32"),
        ("168.63.129.16", "0.0.0.0/0", "168.63.129.16/32"),
        ("fd20:ce::254", "fd00::/8", "fd20:ce::254/128"),
        ("fd00:ec2::254", "fc00::/7", "fd00:ec2::/32"),
    ],
)
async def test_metadata_is_allowed_by_name_only(address: str, wide: str, narrow: str) -> None:
    """A network of private addresses that holds a metadata address does not open it; one as narrow as its rule does."""
    for development in (True, False):
        for forbidden in ((), (wide,), (wide, "::/0")):
            with pytest.raises(EgressRefused, match="metadata"):
                await guard(development=development, allow=forbidden).look_up(url_of(address))
        await guard(development=development, allow=[narrow]).look_up(url_of(address))


@pytest.mark.parametrize(
    "address", ["::ffff:169.254.169.254", "::ffff:0:169.254.169.254", "64:ff9b::a83f:8110", "2002:6464:64c8::"]
)
async def test_a_wide_network_does_not_open_metadata_in_another_form(address: str) -> None:
    """IPv4's metadata stays closed where IPv6 is allowed as a whole."""
    with pytest.raises(EgressRefused, match=r"metadata.*, as .* in IPv6"):
        await guard(development=True, allow=["::/0"]).look_up(url_of(address))


@pytest.mark.parametrize(
    "address",
    [
        "64:ff9b:1:a9fe:a9:fe00:808:808",  # a prefix of 48 bits
        "64:ff9b:1:5a9:fe:a9fe:808:808",  # 56
        "64:ff9b:1:505:a9:fea9:fe08:808",  # 64
        "64:ff9b:1:505:5:505:a9fe:a9fe",  # 96
    ],
)
async def test_an_address_is_found_behind_a_nat64_prefix_of_every_length(address: str) -> None:
    """Each holds a metadata address in one of the places, and nothing that is forbidden in the others."""
    with pytest.raises(EgressRefused, match=r"\(link-local and metadata, as 169\.254\.169\.254 in IPv6\)"):
        await guard(development=True, allow=["::/0"]).look_up(url_of(address))


LABELS = st.sampled_from(["a", "b", "aa", "a-a", "xn--bcher-kva"])
NAMED = ("hooks.internal.example", "*.apps.internal.example", "bücher.example", "*.straße.example")


class TestNames:
    """Names of the setting, whose addresses may be private (§2.4)."""

    @pytest.mark.parametrize(
        ("host", "named"),
        [
            ("hooks.internal.example", True),
            ("HOOKS.Internal.Example", True),
            ("hooks.internal.example.", True),
            ("ｈooks。internal.example", True),
            ("xn--bcher-kva.example", True),
            ("BÜCHER.example", True),
            ("bu\u0308cher.example", True),
            ("a.apps.internal.example", True),
            ("a_b.c.apps.internal.example.", True),
            ("x.xn--strae-oqa.example", True),
            # The end of a name counts from a dot on, and `*` stands for a label at least.
            ("apps.internal.example", False),
            ("evilapps.internal.example", False),
            ("evil-apps.internal.example", False),
            ("x.hooks.internal.example", False),
            ("xhooks.internal.example", False),
            ("hooks.internal.example.evil.example", False),
            ("a.apps.internal.example.evil.example", False),
            ("hooks.internal.examples", False),
            ("hooks-internal.example", False),
            ("internal.example", False),
            ("b\u0443cher.example", False),
            ("strasse.example", False),
            ("localhost", False),
        ],
    )
    async def test_a_name_is_the_one_that_was_asked_for(self, host: str, named: bool) -> None:
        """In whatever spelling; another name with the same address gains nothing, whichever was asked for before."""
        for address in ("10.0.0.1", "127.0.0.1", "::1", "fd12::1", "100.64.0.1", "::ffff:10.0.0.1"):

            async def private(_host: str, _port: int, address: str = address) -> Sequence[str]:
                return [address]

            guarding = guard(allow=NAMED, resolve=private)
            for other in ("other.example", host, "other.example", host):
                if named and other == host:
                    await guarding.look_up(f"https://{other}/")
                    await guarding.resolve(f"https://{other}/")
                else:
                    with pytest.raises(EgressRefused):
                        await guarding.look_up(f"https://{other}/")
                    with pytest.raises(EgressRefused):
                        await guarding.resolve(f"https://{other}/")

    @given(st.lists(LABELS, min_size=1, max_size=4), st.lists(LABELS, min_size=1, max_size=4), st.booleans())
    def test_names_are_compared_label_by_label(
        self, asked: Sequence[str], listed: Sequence[str], below: bool
    ) -> None:
        """From the last one on; ``*`` stands for one or more."""
        guarding = guard(allow=["*." * below + ".".join(listed)])
        is_named = asked[-len(listed) :] == listed and (len(asked) > len(listed)) == below
        for end in ("", "."):
            host = parse_destination(f"http://{'.'.join(asked).upper()}{end}/").host
            with nullcontext() if is_named else pytest.raises(EgressRefused):
                guarding.check_address("10.0.0.1", host)

    @pytest.mark.parametrize(("rule", "address"), words(EVERYWHERE))
    async def test_what_is_forbidden_everywhere_stays_so(self, rule: str, address: str) -> None:
        """Link-local and metadata addresses among it, also beside an address that is allowed, and within IPv6."""

        async def both(_host: str, _port: int) -> Sequence[str]:
            return ["10.0.0.1", address]

        guarding = guard(allow=[*NAMED, "0.0.0.0/0", "fd00::/8"] if "metadata" in rule else NAMED, resolve=both)
        with pytest.raises(EgressRefused) as refused:
            await guarding.look_up("https://hooks.internal.example/")
        assert "FLOWACTIONS_EGRESS_ALLOW" not in str(refused.value)
        if ":" not in address:
            with pytest.raises(EgressRefused):
                guarding.check_address(f"::ffff:{address}", "hooks.internal.example")

    @pytest.mark.parametrize("literal", ["10.0.0.1", "127.0.0.1", "::1", "::ffff:10.0.0.1"])
    async def test_an_address_in_a_url_has_no_name(self, literal: str) -> None:
        """Nor has one in brackets."""
        with pytest.raises(EgressRefused):
            await guard(allow=NAMED).look_up(url_of(literal))

    async def test_a_delivery_goes_where_the_name_leads_and_no_other_does(self, queue: Queue) -> None:
        """Judged at the address that is dialled, over a connection of its own: kept ones are not shared between names."""

        async def here(_host: str, _port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        guarding = guard(allow=NAMED, resolve=here)
        async with recorder() as receiver:
            port = parse_destination(receiver.url).port
            hosts = [
                "hooks.internal.example",
                "a.apps.internal.example",
                "other.example",
                "127.0.0.1",
                "localhost",
            ]
            rows = [await queue.put(url=f"http://{host}:{port}/") for host in [*hosts, *hosts]]
            transport = OutboundTransport(guarding, 100)
            try:
                await a_schedule(queue, transport, limit=1000, validate=guarding.validate).tick()
            finally:
                await transport.aclose()
            statuses = [(await queue.row(row)).status for row in rows]
        assert statuses == ["delivered", "delivered", "dead", "dead", "dead"] * 2
        assert {request.header("host") for request in receiver.requests} == {
            f"{host}:{port}" for host in hosts[:2]
        }


async def test_a_name_without_an_address_is_not_refused() -> None:
    """Delivery will look again, and retry."""
    destination, is_unknown = await guard().look_up("https://nowhere.example.com:8443/a?b=c#d")
    assert is_unknown
    assert (destination.host, destination.port) == ("nowhere.example.com", 8443)
    assert destination.key == "https://nowhere.example.com:8443"
    assert destination.url == "https://nowhere.example.com:8443/a?b=c#d"


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://example.com", "http://example.com:80"),
        ("HTTPS://EXAMPLE.com/", "https://example.com:443"),
        ("https://xn--exmple-cua.com?x", "https://xn--exmple-cua.com:443"),
        ("http://example.com.:8080/", "http://example.com.:8080"),
        ("http://[2606:4700:0:0::1111]:81/", "http://[2606:4700::1111]:81"),
        ("http://a_b.example.com/", "http://a_b.example.com:80"),
        ("http://exämple.com", "http://xn--exmple-cua.com:80"),
        ("http://EXÄMPLE。com.:81/ä", "http://xn--exmple-cua.com.:81"),
        ("https://straße.de", "https://xn--strae-oqa.de:443"),
        ("https://日本語。ＪＰ", "https://xn--wgv71a119e.jp:443"),
        ("https://ουτοπία.δπθ.gr", "https://xn--kxae4bafwg.xn--pxaix.gr:443"),
        ("https://ｅxample.com", "https://example.com:443"),
        ("http://１.2.3.4/", "http://1.2.3.4:80"),
        ("http://localhost:3000/x", "http://localhost:3000"),
        ("http://1.2.3.4/", "http://1.2.3.4:80"),
        ("http://example.com/@x:y", "http://example.com:80"),
    ],
)
def test_usual_urls_are_read(url: str, key: str) -> None:
    """Scheme, host and port come out in one form."""
    assert parse_destination(url).key == key


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("http://exämple.com:81/ä?ö#ü", "http://xn--exmple-cua.com:81/ä?ö#ü"),
        ("HTTPS://Exämple.com", "https://xn--exmple-cua.com"),
        ("http://１.2.3.4?x", "http://1.2.3.4?x"),
        ("HTTP://Example.com:80/ä", "HTTP://Example.com:80/ä"),
    ],
)
def test_an_international_name_is_stored_in_a_labels(url: str, stored: str) -> None:
    """The rest of the URL stays as authored, and what is stored is read as the same destination."""
    destination = parse_destination(url)
    assert destination.url == stored
    assert parse_destination(stored) == destination


async def test_an_international_name_is_dialled_in_a_labels() -> None:
    """Name lookup, Host header and what a host's transport is given are the same A-labels."""
    asked, given = [], []

    async def here(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        return ["127.0.0.1"]

    def answer(request: httpx.Request) -> httpx.Response:
        given.append((request.url.raw_host, request.headers["host"]))
        return httpx.Response(200)

    guarding = guard(development=True, resolve=here)
    async with recorder() as receiver:
        url = receiver.url.replace("127.0.0.1", "bücher.example")
        ours = OutboundTransport(guarding, 1)
        for transport in (ours, HostTransport(httpx.MockTransport(answer))):
            outcome = await attempt(transport, url, guarding.validate)
            assert (outcome.status_code, outcome.error) == (200, None)
        await ours.aclose()
        name = f"xn--bcher-kva.example:{url.rpartition(':')[2].partition('/')[0]}"
        assert receiver.requests[0].header("host") == name
    assert asked == ["xn--bcher-kva.example"]
    assert given == [(b"xn--bcher-kva.example", name)]


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://example.com", "/"),
        ("http://example.com?", "/?"),
        ("http://example.com/?", "/?"),
        ("http://example.com?a=1#b", "/?a=1"),
        ("http://example.com/a%41/%2e%2E/b%2fc?x=%3A&y=:;,+%20", "/a%41/%2e%2E/b%2fc?x=%3A&y=:;,+%20"),
        ("http://example.com/a/../b//c/./", "/a/../b//c/./"),
        ("http://example.com/100%", "/100%"),
        ('http://example.com/<a>"|`{}^é', "/%3Ca%3E%22%7C%60%7B%7D%5E%C3%A9"),
    ],
)
async def test_path_and_query_are_sent_as_authored(url: str, target: str) -> None:
    """Only what no URL may hold is encoded; nothing that was encoded is written anew, and the fragment stays here."""
    assert parse_destination(url).target == target
    async with recorder() as receiver:
        here = url.replace("http://example.com", receiver.url.removesuffix("/hook"))
        transport = OutboundTransport(guard(development=True), 5)
        try:
            outcome = await attempt(transport, here, guard(development=True).validate)
        finally:
            await transport.aclose()
        assert (outcome.status_code, outcome.error) == (200, None)
        assert receiver.requests[0].line == f"POST {target} HTTP/1.1"


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text makes the reader raise anything else."""
    for url in (text, f"http://{text}", f"https://example.com{text}"):
        try:
            parse_destination(url)
        except EgressRefused:
            continue


class Listener:
    """Counts connections on loopback, on IPv4 and IPv6 alike."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = 0


@asynccontextmanager
async def a_listener() -> AsyncIterator[Listener]:
    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        listener.connections += 1

    async with listening(count) as port, listening(count, host="::1", port=port):
        listener = Listener(port)
        yield listener


class TestDelivery:
    """Rows that were planted straight into the queue, past the check at enqueue."""

    @staticmethod
    async def delivered(queue: Queue, urls: Sequence[str], guarding: EgressGuard) -> dict[str, Any]:
        """Plant the URLs, tick once with the real transport, and give each URL's row."""
        planted = {await queue.put(url=url): url for url in urls}
        transport = OutboundTransport(guarding, 100)
        try:
            await a_schedule(queue, transport, limit=1000, validate=guarding.validate).tick()
        finally:
            await transport.aclose()
        return {url: await queue.row(row_id) for row_id, url in planted.items()}

    @pytest.mark.parametrize("development", [False, True])
    async def test_no_packet_reaches_a_forbidden_address(self, queue: Queue, development: bool) -> None:
        """A spelling of each kind is dead at once with its reason, and the listener on loopback hears nothing (§2.4)."""
        async with a_listener() as listener:
            spellings = SAMPLE if development else [*SAMPLE, *SAMPLE_IN_PRODUCTION]
            urls = [url.format(port=listener.port) for url in spellings]
            rows = await self.delivered(queue, urls, guard(development=development))
            for url, row in rows.items():
                assert (row.status, row.attempts) == ("dead", 1), (url, row.last_error)
                assert re.search(r"The URL|are not allowed \(.+\)", row.last_error), (url, row.last_error)
            await asyncio.sleep(0.1)
            assert listener.connections == 0

    async def test_the_listener_counts_connections(self, queue: Queue) -> None:
        """The same listener does hear what development allows, on both of its addresses and by name."""
        async with a_listener() as listener:
            urls = [f"http://{host}:{listener.port}/" for host in ("127.0.0.1", "[::1]", "localhost")]
            rows = await self.delivered(queue, urls, guard(development=True))
            assert {row.status for row in rows.values()} == {"retrying"}
            assert listener.connections >= 3

    async def test_dns_rebinding_is_refused(self, queue: Queue) -> None:
        """Public when it is enqueued, loopback when it is dialled: refused, dead, said why, nothing dialled."""
        answers = [["8.8.8.8"], ["127.0.0.1"]]

        async def rebinding(host: str, port: int) -> Sequence[str]:
            return answers.pop(0)

        guarding = guard(resolve=rebinding)
        async with a_listener() as listener:
            url = f"http://rebind.example.com:{listener.port}/"
            await guarding.look_up(url)
            row = (await self.delivered(queue, [url], guarding))[url]
            assert (row.status, row.attempts) == ("dead", 1)
            assert row.last_error.startswith("Requests to 127.0.0.1 are not allowed (loopback).")
            assert (listener.connections, answers) == (0, [])

    async def test_proxies_and_passwords_of_the_environment_are_ignored(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Neither proxy variables nor a netrc file lead deliveries elsewhere or add to them."""
        netrc = tmp_path / "netrc"
        netrc.write_text("default login ada password s3cret\n")
        monkeypatch.setenv("NETRC", str(netrc))
        async with recorder() as proxy, recorder() as receiver:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            await self.delivered(queue, [receiver.url], guard(development=True))
            assert (len(proxy.requests), len(receiver.requests)) == (0, 1)
            assert "authorization" not in dict(receiver.requests[0].headers)
