from __future__ import annotations

import pytest

from flowactions_plugin.egress.attempt import Request, Response, retry_after
from tests.sending import attempt

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        ("Tue, 14 Nov 2000 22:14:20 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("٣", None),
        ("9" * 400, 999999999.0),
        ("Tue, 99 Nov 999999999 22:14:20 GMT", None),
    ],
)
def test_retry_after_is_read(value: str, expected: float | None) -> None:
    """Seconds and dates count; garbage does not."""
    assert retry_after(value, NOW) == expected


@pytest.mark.parametrize(("status", "expected"), [(429, 7.0), (503, 7.0), (500, None), (200, None)])
async def test_retry_after_counts_on_429_and_503(status: int, expected: float | None) -> None:
    """Elsewhere it is not looked at."""

    class Answers:
        async def send(self, request: Request) -> Response:
            return Response(status, {"retry-after": "7"}, b"")

        async def aclose(self) -> None: ...

    assert (await attempt(Answers(), now=NOW)).retry_after == expected
