"""Requests and answers that a host must not change on their way: what usual frameworks and middlewares trip over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PROBLEM: Final = "application/problem+json"

BODIES: Final[Sequence[tuple[str, str, bytes]]] = (
    ("bytes that are no UTF-8", "application/octet-stream", bytes(range(256))),
    ("bytes that are no UTF-8, said to be text", "text/plain; charset=utf-8", b"\xff\xfe\x00caf\xe9"),
    ("JSON with spaces and a repeated name", "application/json", b' {"b": 1.10,\t"a": 1e2, "a":\n null}\r\n'),
    ("JSON that is none", "application/json", b'{"a": '),
    ("a form", "application/x-www-form-urlencoded", b"a=1&a=2&b=%C3%A9+%2B&c"),
    (
        "a multipart form",
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
    ),
    ("nothing", "application/json", b""),
)
PIECE_BYTES: Final = 65_536
"""Of what is sent at once."""
IN_PIECES: Final = ("a mebibyte, which came in pieces", "application/octet-stream", bytes(range(256)) * 4_096)
LARGEST: Final = b'{"text": "%s"}' % (b"Ab3 " * 524_285)
"""Two mebibytes of JSON, what an editor may send."""

QUERY: Final = "q=%2B+%20%C3%A9%E9&empty=&a=2&a=1&flag&path=%2Fx%2F..&raw=a%26b%3Dc&braces={}"
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")

ANSWERS: Final[Sequence[tuple[int, str, bytes, int]]] = (
    (200, "application/octet-stream", bytes(range(256)), 1),
    (200, "text/html; charset=latin-1", b"<html><head></head><body>caf\xe9</body></html>", 1),
    (201, "application/json", b' {"b": 1.10,  "a": null}\n', 1),
    (400, PROBLEM, b'{"code": "kit",  "status": 400}', 1),
    (401, PROBLEM, b'{"code": "kit",  "status": 401}', 1),
    (403, PROBLEM, b'{"code": "kit",  "status": 403}', 1),
    (404, PROBLEM, b'{"code": "kit",  "status": 404}', 1),
    (409, "application/json", b"[]", 1),
    (202, "text/plain; charset=utf-8", b"long ", 50_000),
    (500, PROBLEM, b'{"code": "kit"}', 1),
    (502, "text/html", b"<h1>failed</h1>", 1),
    (504, "text/plain", b"failed", 1),
    (503, PROBLEM, b'{"code": "kit",  "status": 503}', 1),
)
HEADERS: Final = (("retry-after", "17"), ("cache-control", "no-store"), ("content-disposition", "inline"))
SIGNED: Final = (
    ("svix-id", "msg-007"),
    ("idempotency-key", "007"),
    ("svix-signature", "v1,Ab3+/Cd4=="),
    ("x-slack-signature", "v0=Ab3"),
)
"""Headers of requests."""
COOKIE: Final = frozenset({"httponly", "secure", "samesite=strict", "path=/"})
"""The attributes of the probe's cookies."""
PATHS: Final = ("Ab3/aB3", "007", "a.b/c_d~e", "Ame\u0301lie/é", "%2e%2520")
"""What stands at the end of a path. The last one is written in percents."""
REDIRECTS: Final = (
    (302, "https://elsewhere.example/path?next=%2Fa%20b&x=1#end"),
    (303, "/relative/path?x=%C3%A9"),
    (307, "?only=query"),
)
