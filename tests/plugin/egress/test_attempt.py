from __future__ import annotations

import pytest

from flowactions_plugin.egress.attempt import retry_after

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("status", "value", "expected"),
    [
        (429, "7", 7.0),
        (503, " 120 ", 120.0),
        (503, "Tue, 14 Nov 2023 22:14:20 GMT", 60.0),
        (503, "Tue, 14 Nov 2000 22:14:20 GMT", 0.0),
        (500, "7", None),
        (429, None, None),
        (429, "soon", None),
        (429, "-5", None),
        (429, "٣", None),
        (429, "9" * 400, 999999999.0),
        (503, "Tue, 99 Nov 999999999 22:14:20 GMT", None),
    ],
)
def test_retry_after_is_read_where_it_counts(status: int, value: str | None, expected: float | None) -> None:
    """Seconds and dates count on 429 and 503; garbage counts nowhere."""
    assert retry_after(status, value, NOW) == expected
