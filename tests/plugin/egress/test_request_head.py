"""Requests' heads, byte for byte; what a stored row may say and what it may not."""

from __future__ import annotations

import pytest

from flowactions_plugin.egress.attempt import Progress, Request
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.request_head import connect_head, head_of
from flowactions_plugin.errors import SendFailed


def a_request(
    url: str = "http://example.com/hook?a=%41&b",
    method: str = "POST",
    headers: tuple[tuple[str, str], ...] = (),
    body: bytes | None = b"{}",
) -> Request:
    return Request(method, parse_destination(url), headers, body, Progress())


def test_a_head_is_what_the_row_says_and_what_frames_it() -> None:
    """Target and headers as they were stored, in their order; host and length are the request's own."""
    head = head_of(a_request(headers=(("X-A", "1 ü"), ("Host", "evil"), ("content-LENGTH", "9"), ("x-b", ""))))
    assert head == (
        b"POST /hook?a=%41&b HTTP/1.1\r\nHost: example.com\r\nX-A: 1 \xc3\xbc\r\nx-b: \r\nContent-Length: 2\r\n\r\n"
    )


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://example.com:80/", b"example.com"),
        ("https://example.com:443/", b"example.com"),
        ("https://example.com:80/", b"example.com:80"),
        ("http://example.com:8080/", b"example.com:8080"),
        ("http://[2606:4700::1111]/", b"[2606:4700::1111]"),
        ("http://[2606:4700::1111]:81/", b"[2606:4700::1111]:81"),
    ],
)
def test_the_host_has_the_port_that_its_scheme_does_not_imply(url: str, host: bytes) -> None:
    """And an IPv6 address is in brackets."""
    assert head_of(a_request(url)).split(b"\r\n")[1] == b"Host: " + host


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("POST", None, b"0"), ("PUT", b"", b"0"), ("GET", None, None), ("DELETE", b"", None), ("GET", b"x", b"1")],
)
def test_a_length_is_said_where_a_body_is_expected(
    method: str, body: bytes | None, length: bytes | None
) -> None:
    """Without one, methods that have none by their meaning say nothing."""
    lines = head_of(a_request(method=method, body=body)).split(b"\r\n")
    found = [line for line in lines if line.lower().startswith(b"content-length")]
    assert found == ([] if length is None else [b"Content-Length: " + length])


def test_a_forward_proxy_gets_the_whole_url_and_its_own_headers() -> None:
    """For https it gets a request for a tunnel, which says nothing of the webhook but host and port."""
    extra = (("Proxy-Authorization", "Basic x"),)
    lines = head_of(a_request(), absolute=True, extra=extra).split(b"\r\n")
    assert lines[0] == b"POST http://example.com/hook?a=%41&b HTTP/1.1"
    assert b"Proxy-Authorization: Basic x" in lines
    assert connect_head(parse_destination("https://[2606:4700::1111]/secret"), extra) == (
        b"CONNECT [2606:4700::1111]:443 HTTP/1.1\r\nHost: [2606:4700::1111]:443\r\nProxy-Authorization: Basic x\r\n\r\n"
    )


@pytest.mark.parametrize(
    "headers",
    [
        (("x", "a\r\nevil: 1"),),
        (("x", "a\nb"),),
        (("x", "a\rb"),),
        (("x", "a\0b"),),
        (("x", "\ud800"),),
        (("x: y\r\nevil", "1"),),
        (("x y", "1"),),
        (("x:", "1"),),
        (("", "1"),),
        (("ü", "1"),),
    ],
)
def test_what_http_does_not_allow_is_not_sent(headers: tuple[tuple[str, str], ...]) -> None:
    """A row that something else has written cannot add a header or a request."""
    with pytest.raises(SendFailed, match="stored header"):
        head_of(a_request(headers=headers))


@pytest.mark.parametrize("method", ["", "GET /evil HTTP/1.1\r\n", "GET /evil", "P\0ST", "P\nST"])
def test_a_method_is_one_word(method: str) -> None:
    """Nor can its method."""
    with pytest.raises(SendFailed, match="method"):
        head_of(a_request(method=method))
