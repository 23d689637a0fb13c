"""Responses in whatever pieces they come, well formed or not."""

from __future__ import annotations

import itertools
import re
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
    refused: bool = False
    flawed: bool = False


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
    return Read(reader.status, reader.complete, reader.clean, reader.body, refused, reader.flawed)


CLEAN: dict[str, bytes] = {
    "length": OK + b"content-length: 2\r\n\r\nok",
    "length 0": OK + b"content-length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "chunks": CHUNKED + b"2\r\nok\r\n0\r\n\r\n",
    "chunks with trailers": CHUNKED + b"2;x=y\r\nok\r\n0\r\nx: y\r\n\r\n",
    "after 16 interim responses": b"HTTP/1.1 100 Continue\r\n\r\n" * 15
    + b"HTTP/1.1 103 Early\r\nlink: </x>\r\n\r\n"
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
    ("data", "complete", "flawed"),
    [
        (OK + b"\r\nuntil the end", True, False),
        (OK + b"\r\n", True, False),
        (OK + b"content-length: 5\r\n\r\nhel", True, True),
        (OK + b"content-length: 5\r\n\r\n", True, True),
        (CHUNKED, True, True),
        (CHUNKED + b"5\r\nhello\r\n", True, True),
        (OK + b"x: y", True, True),
        (OK, True, True),
        (OK[:-2], False, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False, False),
        (b"HTTP/1.1 103 Early\r\nx: y", False, False),
        (b"", False, False),
    ],
)
def test_the_end_of_a_connection_ends_a_body_without_length(data: bytes, complete: bool, flawed: bool) -> None:
    """With a length or chunks, what is missing is missing; the response counts once its status line is complete."""
    assert not read(data).complete
    found = read(data, ends=True)
    assert (found.complete, found.flawed, found.clean) == (complete, flawed, False)


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"RTSP/1.0 200 OK\r\n\r\n",
        b"\0" * 10,
        bytes(range(256)),
        b"PRI * HTTP/2.0\r\n\r\n",
        b"HTTP/1.1 twohundred\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200OK\r\n\r\n",
        b"HTTP/1.1 200 " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"\r\n" * MAX_HEAD_BYTES,
        b"HTTP/1.1 103 Early\r\ncontent-length: 2\r\n\r\nok" + OK + b"\r\n",
        b"HTTP/1.1 103 Early\nx: y\n\n" + OK + b"\r\n",
        b"HTTP/1.1 103 Early\r\n\r\n" * 17 + CLEAN["length"],
    ],
)
def test_what_is_not_http_is_refused(data: bytes) -> None:
    """In one piece and in many."""
    assert read(data).refused
    for size in (1, 7, 1000):
        assert read(data, tuple(range(0, len(data), size))).refused


HEADS: dict[str, bytes] = {
    "both lengths": b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "both lengths, chunks first": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\nhello",
    "two equal lengths": b"content-length: 2\r\ncontent-length: 2\r\n\r\nok",
    "two equal lengths in one": b"content-length: 2, 2\r\n\r\nok",
    "two lengths": b"content-length: 5\r\ncontent-length: 7\r\n\r\nhello",
    "a length below zero": b"content-length: -5\r\n\r\n",
    "a length with a sign": b"content-length: +2\r\n\r\nok",
    "a length in words": b"content-length: two\r\n\r\nok",
    "a length without end": b"content-length: 99999999999999999999999\r\n\r\nok",
    "an empty length": b"content-length:\r\n\r\nok",
    "a folded header": b"x: a\r\n b\r\ncontent-length: 2\r\n\r\nok",
    "a folded first header": b" x: a\r\ncontent-length: 2\r\n\r\nok",
    "bare LF": b"x: y\ncontent-length: 2\n\nok",
    "bare LF in a header": b"x: y\ncontent-length: 2\r\n\r\nok",
    "bare LF at the end": b"content-length: 2\r\n\nok",
    "bare CR": b"x: y\rz\r\ncontent-length: 2\r\n\r\nok",
    "an empty name": b": y\r\ncontent-length: 2\r\n\r\nok",
    "a blank in a name": b"x y: z\r\ncontent-length: 2\r\n\r\nok",
    "a blank after a name": b"x : z\r\ncontent-length: 2\r\n\r\nok",
    "a name that is no ASCII": b"\xc3\xbc: z\r\ncontent-length: 2\r\n\r\nok",
    "no colon": b"garbage\r\ncontent-length: 2\r\n\r\nok",
    "NUL": b"x: a\0b\r\ncontent-length: 2\r\n\r\nok",
    "a control character": b"x: a\x01b\r\ncontent-length: 2\r\n\r\nok",
    "identity and a length": b"transfer-encoding: identity\r\ncontent-length: 2\r\n\r\nok",
}
"""What may be wrong in a head after the status line."""

LINES: dict[str, bytes] = {
    "bare LF": b"HTTP/1.1 %d OK\n",
    "two blanks": b"HTTP/1.1  %d OK\r\n",
    "a tab": b"HTTP/1.1\t%d OK\r\n",
    "HTTP/1.2": b"HTTP/1.2 %d OK\r\n",
    "bare CR in the reason": b"HTTP/1.1 %d O\rK\r\n",
    "after an interim response": b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1  %d\n",
}
"""Status lines of HTTP/1.x that are odd themselves."""

CHUNKS: dict[str, bytes] = {
    "no number": b"2\r\nok\r\nZZ\r\nx",
    "below zero": b"2\r\nok\r\n-1\r\nx",
    "a number without end": b"2\r\nok\r\nfffffffffffffffffff\r\nx",
    "bare LF": b"2\r\nok\r\n2\nok\n0\n\n",
    "no end of line": b"2\r\nokX\r\n0\r\n\r\n",
    "a blank after the size": b"2\r\nok\r\n2 \r\nok\r\n0\r\n\r\n",
    "an extension without end": b"2\r\nok\r\n1;x=" + b"y" * MAX_HEAD_BYTES,
    "trailers without end": b"2\r\nok\r\n0\r\n" + b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 1),
    "a trailer that is none": b"2\r\nok\r\n0\r\nx y: z\r\n\r\n",
}
"""What may be wrong in a body of chunks, after its first two bytes."""


class TestFlawed:
    """Once the status line is complete, a response counts, whatever is wrong after it (§4.5)."""

    @pytest.mark.parametrize("rest", HEADS.values(), ids=HEADS)
    def test_a_wrong_head_of_a_success_is_not_read_on(self, rest: bytes) -> None:
        """Cut anywhere, it is the same; the connection is not used again."""
        data = OK + rest
        assert {read(data, (cut,)) for cut in range(len(data))} == {Read(200, True, False, b"", flawed=True)}
        assert read(data, tuple(range(len(data)))) == Read(200, True, False, b"", flawed=True)
        assert read(OK + b"x y: z\r\n") == Read(200, True, False, b"", flawed=True)  # its end need not come

    @pytest.mark.parametrize("rest", HEADS.values(), ids=HEADS)
    @pytest.mark.parametrize("status", [429, 503, 500])
    def test_a_wrong_head_of_a_failure_keeps_its_headers(self, status: int, rest: bytes) -> None:
        """As far as it is read, which is to its end: the whole lines before the flaw count, and those after it."""
        head = b"HTTP/1.1 %d Busy\r\n" % status
        end = re.search(rb"\n\r?\n", rest)
        assert end is not None
        for data in (
            head + b"Retry-After: 7\r\n" + rest,
            head + rest[: end.start() + 1] + b"Retry-After: 7\n" + rest[end.start() + 1 :],
        ):
            for size in (1, 7, len(data)):
                reader = ResponseReader()
                feed(reader, (data[start : start + size] for start in range(0, len(data), size)))
                assert (reader.status, reader.complete, reader.clean, reader.flawed) == (
                    status,
                    True,
                    False,
                    True,
                )
                assert reader.headers is not None
                assert reader.headers.get("retry-after") == "7"

    @pytest.mark.parametrize("line", LINES.values(), ids=LINES)
    @pytest.mark.parametrize("status", [200, 204, 299, 302, 410, 503])
    def test_an_odd_status_line_is_one(self, status: int, line: bytes) -> None:
        """Of HTTP/1.x, with three digits, and complete."""
        data = line % status + b"content-length: 2\r\n\r\nok"
        for size in (1, 7, len(data)):
            assert read(data, tuple(range(0, len(data), size))) == Read(status, True, False, b"", flawed=True)
        before = line[: line.rindex(b"\n")] % status
        assert not read(before, ends=True).complete

    @pytest.mark.parametrize("rest", CHUNKS.values(), ids=CHUNKS)
    @pytest.mark.parametrize("status", [200, 503])
    def test_of_a_wrong_body_the_start_is_kept(self, status: int, rest: bytes) -> None:
        """What came before the flaw."""
        data = b"HTTP/1.1 %d Odd\r\ntransfer-encoding: chunked\r\n\r\n" % status + rest
        for size in (1, 7, len(data)):
            assert read(data, tuple(range(0, len(data), size))) == Read(status, True, False, b"ok", flawed=True)

    @pytest.mark.parametrize(
        ("data", "retry_after"),
        [
            (b"HTTP/1.1 503 Busy\r\nRetry-After: 12", None),  # the number may go on
            (b"HTTP/1.1 503 Busy\r\nRetry-After: 12\r\n", "12"),
            (b"HTTP/1.1 503 Busy\nRetry-After: 12\n", "12"),
            (b"HTTP/1.1 503 Busy\r\nx y: z\r\nRetry-After: 12\r\nx", "12"),
            (b"HTTP/1.1 503 Busy\r\nRetry-After: 12\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES, "12"),
            (b"HTTP/1.1 503 Busy\r\n" + b"x: y\r\n" * MAX_HEAD_BYTES + b"Retry-After: 12\r\n", None),
        ],
    )
    def test_of_a_head_that_was_cut_short_whole_lines_count(self, data: bytes, retry_after: str | None) -> None:
        """By a deadline, a reset or the limit."""
        reader = ResponseReader()
        reader.feed(data)
        assert reader.cut()
        assert (reader.status, reader.flawed) == (503, True)
        assert reader.headers is not None
        assert reader.headers.get("retry-after") == retry_after


@pytest.mark.parametrize(("before", "after"), list(itertools.product(CLEAN, repeat=2)))
def test_responses_on_one_connection_are_read_like_the_first(before: str, after: str) -> None:
    """Nothing of a response is left in the reader when the next one comes, whole or byte by byte."""
    reader = ResponseReader()
    for data, size in ((CLEAN[before], len(CLEAN[before])), (CLEAN[after], 1), (CLEAN[before], 2)):
        reader.begin(head_only=False)
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
        assert Read(reader.status, reader.complete, reader.clean, reader.body) == read(data)
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
    assert read(data) == Read(200, True, True, b"ok")
    assert read(data, tuple(range(0, len(data), 1000))) == Read(200, True, True, b"ok")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head_of(MAX_HEAD_BYTES + 1), 200),
        (OK + b"x: y\r\n" * (MAX_HEAD_BYTES // 6), 200),
        (head_of(MAX_HEAD_BYTES + 1, line=b"x: " + b"y" * 60_000 + b"\r\n"), 200),
        (OK + b"x: " + b"y" * MAX_HEAD_BYTES, 200),
        (head_of(2 * MAX_HEAD_BYTES, b"204 No"), 204),
        (head_of(2 * MAX_HEAD_BYTES, b"503 Busy"), 503),
        (head_of(2 * MAX_HEAD_BYTES, b"999 Odd"), 999),
        (b"\r\n" + head_of(2 * MAX_HEAD_BYTES, b"302 Found"), 302),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + head_of(2 * MAX_HEAD_BYTES, b"429 Slow"), 429),
        # An interim response is no answer, and a status line without end is none.
        (head_of(2 * MAX_HEAD_BYTES, b"103 Early"), None),
        (b"HTTP/1.1 200 " + b"y" * 2 * MAX_HEAD_BYTES, None),
        (b"HTTP/1.1 503 Busy\r\nx y: z\r\n" + b"x: y\r\n" * (MAX_HEAD_BYTES // 3), 503),
    ],
)
def test_of_headers_above_the_limit_the_status_is_known(data: bytes, status: int | None) -> None:
    """In one piece and in many: the status line was read, and nothing more is."""
    for size in (1, 1000, 16 * 1024, len(data)):
        found = read(data, tuple(range(0, len(data), size)))
        assert found == Read(status or 0, status is not None, False, b"", status is None, status is not None)


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
