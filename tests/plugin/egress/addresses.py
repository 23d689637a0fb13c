"""Addresses and URLs that are refused, by the rule or the reason that refuses them, and those that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowactions_plugin.egress.guard import EgressGuard, Resolve
from flowactions_plugin.settings.readers import destinations


def words(groups: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return each word of each group, with the group's name."""
    return [(name, word) for name, text in groups.items() for word in text.split()]


EVERYWHERE = {
    "this host": "0.0.0.0 0.1.2.3 0.255.255.255 ::",
    "link-local and metadata": "169.254.169.254 169.254.0.1 169.254.170.2 169.254.169.253",
    "metadata": "100.100.100.200 168.63.129.16 fd00:42::42 fd00:c1::a9fe:a9fe fd00:ec2::254 fd20:ce::254",
    "protocol assignments": "192.0.0.1 192.0.0.170 192.0.0.192 2001:2::1 2001:10::1 2001:20::1",
    "documentation": "192.0.2.1 198.51.100.7 203.0.113.9 2001:db8::1 2001:db8:ffff::1 3fff::1",
    "6to4 relay": "192.88.99.1",
    "benchmarking": "198.18.0.1 198.19.255.255",
    "multicast": "224.0.0.1 233.252.0.1 239.255.255.250 ff02::1 ff0e::1",
    "reserved": "240.0.0.1 255.255.255.254 255.255.255.255",
    "this host, as 0.0.0.2 in IPv6": "::2",
    "not globally routed": "1::1 4000::1 100::1 100:0:0:1::1 5f00::1",
    "link-local": "fe80::1 febf::1",
    "site-local": "fec0::1",
    "link-local and metadata, as 169.254.169.254 in IPv6": (
        "::ffff:169.254.169.254 ::ffff:0:169.254.169.254 ::169.254.169.254 64:ff9b::a9fe:a9fe "
        "64:ff9b:1::a9fe:a9fe 2002:a9fe:a9fe:: 2001:0:0:0:0:0:5601:5601 64:ff9b:1:a9fe:a9:fe00:: "
        "64:ff9b::169.254.169.254"
    ),
    "documentation, as 198.51.100.7 in IPv6": "64:ff9b::198.51.100.7",
    "metadata, as 168.63.129.16 in IPv6": (
        "::ffff:168.63.129.16 ::168.63.129.16 64:ff9b::a83f:8110 64:ff9b:1:a83f:81:1000:: 2002:a83f:8110:: "
        "2001:0:0:0:0:0:57c0:7eef"
    ),
    "metadata, as 100.100.100.200 in IPv6": "::ffff:100.100.100.200",
}
"""Rule → addresses that it refuses in production and in development."""

IN_PRODUCTION = {
    "loopback": "127.0.0.1 127.0.0.2 127.1.2.3 127.255.255.254 ::1 0:0:0:0:0:0:0:1 ::0001",
    "private": (
        "10.0.0.1 10.255.255.255 172.16.0.1 172.20.0.1 172.31.255.255 192.168.1.1 192.168.255.255 fc00::1 "
        "fd00::1 fd12:3456::1"
    ),
    "carrier-grade NAT": "100.64.0.1 100.127.255.255",
    "loopback, as 127.0.0.1 in IPv6": (
        "::ffff:127.0.0.1 ::ffff:7f00:1 0:0:0:0:0:ffff:127.0.0.1 ::ffff:0:7f00:1 ::127.0.0.1 ::7f00:1 "
        "64:ff9b::7f00:1 2002:7f00:1::"
    ),
    "private, as 10.0.0.1 in IPv6": "::ffff:10.0.0.1 64:ff9b::10.0.0.1 64:ff9b:1::10.0.0.1 2002:a00:1::",
    "IPv4, as 8.8.8.8 in IPv6": "64:ff9b:1::8.8.8.8 2002:808:808:: ::ffff:8.8.8.8",
}
"""Rule → addresses that it refuses in production only."""

FORBIDDEN_EVERYWHERE = [address for _, address in words(EVERYWHERE)]

NAMES = {
    "localhost": ["127.0.0.1", "::1"],
    "localhost.": ["127.0.0.1", "::1"],
    "foo.localhost": ["127.0.0.1"],
    "inside.example.com": ["10.1.2.3"],
    "both.example.com": ["8.8.8.8", "127.0.0.1"],
    "metadata.example.com": ["169.254.169.254"],
    "mapped.example.com": ["::ffff:127.0.0.1"],
    "nat64.example.com": ["2606:4700::1111", "64:ff9b::7f00:1"],
}
"""Names that lead where nobody may go, though some of their addresses are innocent."""


_ALLOWED = """
8.8.8.8 1.1.1.1 1.0.0.0 9.255.255.255 11.0.0.1 100.63.255.255 100.128.0.1 126.255.255.255 128.0.0.1
169.253.255.255 169.255.0.1 168.63.129.15 168.63.129.17 172.15.255.255 172.32.0.1 191.255.255.255
192.0.1.1 192.0.3.1 192.88.98.1 192.167.255.255 192.169.0.1 198.17.255.255 198.20.0.1 198.51.99.1
198.51.101.1 203.0.112.1 203.0.114.1 223.255.255.254 2606:4700::1111 2a00:1450::1 64:ff9b::8.8.8.8
64:ff9b::168.63.129.15 2001:200::1 2001:4860:4860::8888 2400:cb00::1 3ffe::1
"""
ALLOWED = _ALLOWED.split()
"""Most of them neighbours of what is forbidden."""

MALFORMED = [
    ("The URL is missing.", ""),
    *words(
        {
            "The URL must start with http:// or https://.": (
                "example.com //example.com //127.0.0.1:{port}/ ftp://127.0.0.1:{port}/ file:///etc/passwd "
                "gopher://127.0.0.1:{port}/_x dict://127.0.0.1:{port}/ ldap://127.0.0.1:{port}/ "
                "ws://127.0.0.1:{port}/ unix:///var/run/docker.sock http+unix://%2Fvar%2Frun%2Fdocker.sock/ "
                "javascript:alert(1) data:text/plain,x jar:http://127.0.0.1:{port}!/ http:/127.0.0.1:{port}/ "
                "http:127.0.0.1:{port}/"
            ),
            "The URL's host is not a host name.": (
                "http:///127.0.0.1:{port}/ http:////127.0.0.1:{port}/ http:// http://?x http://#127.0.0.1 "
                "http://:{port}/ http://\u00ad:{port}/ http://\u00ad.example.com/ http://127.0.0.1%00.example.com:{port}/ http://127.0.0.1..:{port}/ "
                "http://%31%32%37.0.0.1:{port}/ http://127.0.0.1%2e:{port}/ http://127.0.0.1／.example.com:{port}/ "
                "http://example.com＠127.0.0.1:{port}/ http://127.0.0.1：{port}/ http://℀.example.com/ "
                "http://exa％6dple.com/ http://。/ http://-example.com http://example..com http://.example.com "
                "http://aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.com"
            ),
            "The URL contains a space, a control character or a backslash.": (
                "http://127.0.0.1:{port}\\@example.com http://example.com\\@127.0.0.1:{port}/ http://example.com\\..\\ "
                "http:\\\\127.0.0.1:{port}/ http:/\\127.0.0.1:{port}/"
            ),
            "The URL must not contain a user name or password.": (
                "http://user@example.com http://user:pw@example.com http://@127.0.0.1:{port}/ "
                "http://:@127.0.0.1:{port}/ http://example.com@127.0.0.1:{port}/ "
                "http://example.com:80@127.0.0.1:{port}/ http://example.com%2f@127.0.0.1:{port}/"
            ),
            "The URL's port must be from 1 to 65535.": "http://example.com:0 http://example.com:65536",
            "The URL's host or port is not well formed.": (
                "http://example.com:99999999999999999999 http://example.com:abc http://example.com:-1 "
                "http://example.com:+80 http://example.com:８０ http://example.com: http://[::1 http://::1 "
                "http://::1:{port}/ http://[::1]x:{port}/ http://[::1%25eth0]:{port}/ http://[::1%25lo]:{port}/ "
                "http://[fe80::1%eth0] http://[::ffff:0x7f.1]:{port}/ http://[v1.x] http://[]:{port}/ "
                "http://［::1］:{port}/"
            ),
            "The URL's host is not an IPv6 address.": "http://[1.2.3.4]",
            "The URL's host is not an IPv4 address in its usual spelling.": (
                "http://0:{port}/ http://0x0:{port}/ http://2130706433:{port}/ http://0x7f000001:{port}/ "
                "http://0X7F000001:{port}/ http://0x7f.1:{port}/ http://0x7f.0.0.1:{port}/ "
                "http://017700000001:{port}/ http://0177.1:{port}/ http://0177.0.0.1:{port}/ http://127.1:{port}/ "
                "http://127.0.1:{port}/ http://127.0.0.0x1:{port}/ http://127.000.000.001:{port}/ "
                "http://00127.0.0.1:{port}/ http://127.0.0.1.:{port}/ http://127.0.0.256:{port}/ "
                "http://127.0.0.1.1:{port}/ http://2852039166/ http://0xa9fea9fe/ http://0251.0376.0251.0376/ "
                "http://169.254.43518/ http://１２７．１:{port}/ http://０x7f。1:{port}/ http://２１３０７０６４３３:{port}/ "
                "http://１２７。0。0。２５６:{port}/"
            ),
            "The URL's host is not an international name that can be looked up.": (
                "http://exämple..com/ http://a\u200db.com/ http://é。。com/ http://xn--é.com/ http://-é.com/ http://́a.com/ http://אa1.com/ "
                "http://ex�mple.com/ http://éééééééééééééééééééééééééééééééééééééééééééééééééééééééééééé.com/"
            ),
        }
    ),
    ("The URL's host is not a host name.", f"http://{'a.' * 127}com"),
    ("The URL's host is not an international name", f"http://{'é.' * 120}com/"),
    *(
        ("The URL contains a space, a control character or a backslash.", url)
        for url in (
            *(f"{start}127.0.0.1:{{port}}/" for start in (" http://", "\nhttp://", "http://\t", "ht\ntp://")),
            *(f"http://example.com{end}" for end in ("/a b", "/\r\nx", "/\x00", "\t", "/\ud800", "/\u2028")),
            "http://exa mple.com",
            "http://127.0.0.1\t.example.com:{port}/",
        )
    ),
    ("The URL is longer than 2048 characters.", f"http://example.com/{'a' * 2048}"),
    # What UTS #46 makes into an address is judged as that.
    ("link-local and metadata", "http://１６９。254。169。254/"),
    ("metadata", "http://①⑥⑧.63.129.16/"),
]
"""Why a URL is refused → the URL, which no reader may take for something else; ``{port}`` is that of a listener on loopback."""

_MAPPED = (
    "http://１２７.0.0.1:{port}/ http://①②⑦.0.0.1:{port}/ http://127。0。0。1:{port}/ http://127．0．0．1:{port}/ "
    "http://ⓛocalhost:{port}/ http://ＬＯＣＡＬＨＯＳＴ:{port}/ http://loc\u00adalhost:{port}/ "
    "http://localhost\u3002:{port}/ http://１０。1。2。3:{port}/"
)
MAPPED = _MAPPED.split()
"""What UTS #46 makes into this machine or its network, and what is then judged as that."""

REFUSED_IN_PRODUCTION = [
    *MAPPED,
    *(f"http://{name}:{{port}}/" for name in NAMES if not name.startswith("metadata")),
    "HTTP://LocalHost:{port}/",
    "https://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}#@example.com",
    "http://127.0.0.1:{port}?@example.com",
]
"""URLs that development allows."""

SAMPLE = [
    "//127.0.0.1:{port}/",
    "http://example.com@127.0.0.1:{port}/",
    "http://127.0.0.1\t.example.com:{port}/",
    "http://0x7f.1:{port}/",
    "http://2130706433:{port}/",
    "http://169.254.169.254:{port}/",
    "http://198.51.100.7:{port}/",
    "http://metadata.example.com:{port}/",
]
SAMPLE_IN_PRODUCTION = [
    "http://loc\u00adalhost:{port}/",
    "http://127.0.0.1:{port}/",
    "http://[::1]:{port}/",
    "http://localhost:{port}/",
    "http://both.example.com:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
]
"""One of each kind, for what is asked of a whole delivery."""


async def resolve(host: str, port: int) -> Sequence[str]:
    if host not in NAMES:
        raise OSError("no such host")
    return NAMES[host]


def guard(*, development: bool = False, allow: Sequence[str] = (), resolve: Resolve = resolve) -> EgressGuard:
    return EgressGuard(development=development, allow=destinations(",".join(allow)), resolve=resolve)


def url_of(address: str) -> str:
    return f"https://[{address}]/x" if ":" in address else f"https://{address}/x"
