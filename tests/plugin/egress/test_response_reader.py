"""Responses in whatever pieces they come, well formed or not."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowactions_plugin.egress.response_reader import MAX_HEAD_BYTES, NotHttp, ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"


class Read(NamedTuple):
    """What a reader found."""

    status: int
    complete: bool
    clean: bool
    body: bytes
    refused: bool


def feed(reader: ResponseReader, pieces: Iterable[bytes]) -> None:
    """Give a reader bytes in pieces."""
    for piece in pieces:
        reader.feed(piece)


def read(data: bytes, cuts: tuple[int, ...] = (), *, head_only: bool = False, ends: bool = False) -> Read:
    """Read bytes that are cut at these places."""
    reader, refused = ResponseReader(head_only=head_only), False
    places = [0, *sorted(cuts), len(data)]
    try:
        for start, end in itertools.pairwise(places):
            if start < end:
                reader.feed(data[start:end])
    except NotHttp:
        refused = True
    if ends:
        reader.end()
    return Read(reader.status, reader.complete, reader.clean, reader.body, refused)


CLEAN: dict[str, bytes] = {
    "length": OK + b"content-length: 2\r\n\r\nok",
    "length 0": OK + b"content-length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "chunks": CHUNKED + b"2\r\nok\r\n0\r\n\r\n",
    "chunks with trailers": CHUNKED + b"2;x=y\r\nok\r\n0\r\nx: y\r\n\r\n",
    "after interim responses": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nlink: </x>\r\n\r\n"
    + OK
    + b"content-length: 2\r\n\r\nok",
    "after empty lines": b"\r\n\r\n" + OK + b"content-length: 0\r\n\r\n",
    "odd status": b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
    "reason that is no text": b"HTTP/1.1 500 \xff\xfe\r\ncontent-length: 0\r\n\r\n",
    "body that looks like a response": OK + b"content-length: 19\r\n\r\n" + OK + b"\r\n",
    "body of empty lines": OK + b"content-length: 4\r\n\r\n\r\n\r\n",
}


@pytest.mark.parametrize("data", CLEAN.values(), ids=CLEAN)
def test_what_is_complete_and_nothing_more_leaves_the_connection_usable(data: bytes) -> None:
    """Cut anywhere, it is the same response; and so is every byte after it a reason to close the connection."""
    whole = read(data)
    assert (whole.complete, whole.clean, whole.refused) == (True, True, False)
    assert {read(data, (cut,)) for cut in range(len(data))} == {whole}
    assert read(data, tuple(range(len(data)))) == whole
    for surplus in (b"\r\n", b"\r", b"\0", b"x", b"0\r\n\r\n", data):
        more = read(data + surplus)
        assert more == whole._replace(clean=False)
        assert {read(data + surplus, (cut,)) for cut in range(len(data))} == {more}


@pytest.mark.parametrize(
    "data",
    [
        OK + b"connection: close\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 204 No\r\ncontent-length: 5\r\n\r\n",
        b"HTTP/1.1 204 No\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\n\r\n",
        OK + b"content-length: 9000\r\n\r\n" + b"x" * 2048,
        CHUNKED + b"800\r\n" + b"x" * 2048,
    ],
)
def test_what_is_complete_and_ends_the_connection(data: bytes) -> None:
    """The response counts; the connection is not used again."""
    whole = read(data)
    assert (whole.complete, whole.clean, whole.refused) == (True, False, False)
    assert {read(data, (cut,)) for cut in range(len(data))} == {whole}


@pytest.mark.parametrize("length", [b"", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"])
def test_a_response_without_a_body_is_complete_with_its_head(length: bytes) -> None:
    """To HEAD, whatever it says of a body; if it speaks of one or sends one, the connection is not used again."""
    data = OK + length + b"\r\n"
    for each in (data, data + b"hello"):
        found = read(each, head_only=True)
        assert (found.complete, found.clean, found.body) == (True, False, b"")


@pytest.mark.parametrize(
    ("data", "complete"),
    [
        (OK + b"\r\nuntil the end", True),
        (OK + b"\r\n", True),
        (OK + b"content-length: 5\r\n\r\nhel", False),
        (OK + b"content-length: 5\r\n\r\n", False),
        (CHUNKED, False),
        (CHUNKED + b"5\r\nhello\r\n", False),
        (OK + b"x: y", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
        (b"", False),
    ],
)
def test_the_end_of_a_connection_ends_a_body_without_length(data: bytes, complete: bool) -> None:
    """With a length or chunks, what is missing is missing."""
    assert not read(data).complete
    assert read(data, ends=True).complete is complete


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"\0" * 10,
        bytes(range(256)),
        b"PRI * HTTP/2.0\r\n\r\n",
        b"HTTP/1.1 twohundred\r\n\r\n",
        OK + b"content-length: 5\r\ncontent-length: 7\r\n\r\nhello",
        OK + b"content-length: -5\r\n\r\n",
        OK + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        OK + b"x y: z\r\n\r\n",
        OK + b"x: a\0b\r\n\r\n",
        CHUNKED + b"ZZ\r\nx",
        CHUNKED + b"-1\r\nx",
        OK + b"x: " + b"y" * MAX_HEAD_BYTES,
        b"HTTP/1.1 200 " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        OK + b"x: y\r\n" * (MAX_HEAD_BYTES // 6),
        b"\r\n" * MAX_HEAD_BYTES,
        CHUNKED + b"1;x=" + b"y" * MAX_HEAD_BYTES,
        CHUNKED + b"0\r\n" + b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 1),
        b"HTTP/1.1 103 Early\r\ncontent-length: 2\r\n\r\nok" + OK + b"\r\n",
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    """In one piece and in many."""
    assert read(data).refused
    for size in (1, 7, 1000):
        assert read(data, tuple(range(0, len(data), size))).refused


@pytest.mark.parametrize(("before", "after"), list(itertools.product(CLEAN, repeat=2)))
def test_responses_on_one_connection_are_read_like_the_first(before: str, after: str) -> None:
    """Nothing of a response is left in the reader when the next one comes, whole or byte by byte."""
    reader = ResponseReader()
    for data, size in ((CLEAN[before], len(CLEAN[before])), (CLEAN[after], 1), (CLEAN[before], 2)):
        reader.begin(head_only=False)
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
        assert Read(reader.status, reader.complete, reader.clean, reader.body, False) == read(data)
        assert reader._interim == data.count(b"HTTP/1.1 10")


def test_a_head_alone_is_followed_by_another_response() -> None:
    """After a request whose response has no body, the next one's has."""
    reader = ResponseReader(head_only=True)
    reader.feed(CLEAN["length 0"])
    assert (reader.complete, reader.clean) == (True, True)
    reader.begin(head_only=False)
    reader.feed(CLEAN["length"])
    assert (reader.body, reader.clean) == (b"ok", True)


def head_of(size: int, status: bytes = b"200 OK", line: bytes = b"x: y\r\n") -> bytes:
    """Make a head of so many bytes, of lines like this one."""
    start, end = b"HTTP/1.1 " + status + b"\r\n", b"content-length: 2\r\n\r\n"
    left = size - len(start) - len(end) - len(b"z: \r\n")
    return start + line * (left // len(line)) + b"z: " + b"z" * (left % len(line)) + b"\r\n" + end


@pytest.mark.parametrize("line", [b"x: y\r\n", b"x: " + b"y" * 60_000 + b"\r\n"])
def test_headers_up_to_the_limit_are_read(line: bytes) -> None:
    """However many lines they are."""
    data = head_of(MAX_HEAD_BYTES, line=line) + b"ok"
    assert data.index(b"\r\n\r\n") + 4 == MAX_HEAD_BYTES
    assert read(data) == Read(200, True, True, b"ok", False)
    assert read(data, tuple(range(0, len(data), 1000))) == Read(200, True, True, b"ok", False)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head_of(MAX_HEAD_BYTES + 1), 200),
        (head_of(MAX_HEAD_BYTES + 1, line=b"x: " + b"y" * 60_000 + b"\r\n"), 200),
        (OK + b"x: " + b"y" * MAX_HEAD_BYTES, 200),
        (head_of(9 * MAX_HEAD_BYTES, b"204 No"), 204),
        (head_of(9 * MAX_HEAD_BYTES, b"503 Busy"), 503),
        (head_of(9 * MAX_HEAD_BYTES, b"999 Odd"), 999),
        (b"\r\n" + head_of(9 * MAX_HEAD_BYTES, b"302 Found"), 302),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + head_of(9 * MAX_HEAD_BYTES, b"429 Slow"), 429),
        # An interim response is no answer, and a status line without end is none.
        (head_of(9 * MAX_HEAD_BYTES, b"103 Early"), None),
        (b"HTTP/1.1 200 " + b"y" * 9 * MAX_HEAD_BYTES, None),
        # Malformed within the limit.
        (OK + b"x y: z\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES, None),
    ],
)
def test_of_headers_above_the_limit_the_status_is_known(data: bytes, status: int | None) -> None:
    """In one piece and in many: the status line was read."""
    for size in (1, 1000, 16 * 1024, len(data)):
        reader = ResponseReader()
        pieces = (data[start : start + size] for start in range(0, len(data), size))
        with pytest.raises(NotHttp) as refused:
            feed(reader, pieces)
        assert refused.value.status_code == status
        assert not reader.end()


def test_headers_are_found_by_their_names_in_any_case() -> None:
    """The first of several counts; what is no header is not found."""
    reader = ResponseReader()
    reader.feed(b"\r\n" + OK + b"Retry-After:  7 \r\nretry-after: 8\r\nX: \xe9\r\ncontent-length: 0\r\n\r\n")
    assert reader.headers is not None
    assert dict(reader.headers) == {"retry-after": "7", "x": "é", "content-length": "0"}
    assert reader.headers.get("RETRY-AFTER") == "7"
    assert reader.headers.get("none") is None
    assert len(reader.headers) == 3


responses = st.builds(
    lambda interim, status, headers, framing, surplus: (
        b"HTTP/1.1 103 Early\r\nx: y\r\n\r\n" * interim
        + b"HTTP/1.1 %d Reason\r\n" % status
        + b"".join(b"x-%d: %s\r\n" % (number, value) for number, value in enumerate(headers))
        + framing
        + surplus
    ),
    st.integers(0, 3),
    st.sampled_from([200, 201, 202, 204, 301, 304, 404, 500, 503]),
    st.lists(st.sampled_from([b"", b"value", b"v" * 300, b"\xff"]), max_size=5),
    st.one_of(
        st.binary(max_size=3000).map(lambda body: b"content-length: %d\r\n\r\n" % len(body) + body),
        st.lists(st.binary(min_size=1, max_size=700), max_size=6).map(
            lambda parts: (
                b"transfer-encoding: chunked\r\n\r\n"
                + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
                + b"0\r\n\r\n"
            )
        ),
        st.binary(max_size=100).map(lambda body: b"\r\n" + body),
    ),
    st.sampled_from([b"", b"\r\n", b"stray", OK + b"content-length: 0\r\n\r\n", b"\0"]),
)


@settings(max_examples=300, deadline=None)
@given(
    data=st.one_of(responses, st.binary(max_size=200).map(OK.__add__), st.binary(max_size=60)), draw=st.data()
)
def test_where_the_bytes_are_cut_makes_no_difference(data: bytes, draw: st.DataObject) -> None:
    """The same status, the same body, the same verdict; and a connection that is usable in many pieces is in one."""
    whole = read(data, ends=True)
    cuts = draw.draw(st.lists(st.integers(0, len(data)), max_size=20))
    for places in (tuple(cuts), tuple(range(len(data)))):
        found = read(data, places, ends=True)
        assert found == whole
        kept_open = read(data, places)
        assert read(data).clean >= kept_open.clean
