from __future__ import annotations

import pytest

from flowactions_plugin.log_text import printable

HOSTILE = "a\nb\x1b[31m\u2028\u202e\ud800"


def test_an_id_shows_what_it_holds_as_escapes() -> None:
    """Operators find an id by its escapes; nothing ends the line."""
    assert printable(HOSTILE) == r"a\nb\x1b[31m\u2028\u202e\ud800"


def test_a_message_shows_spaces_for_what_is_not_printable() -> None:
    """A reason stays readable on one line."""
    assert printable(HOSTILE, message=True) == "a b [31m   "


@pytest.mark.parametrize(("message", "limit"), [(False, 200), (True, 1000)])
def test_a_long_text_is_cut(message: bool, limit: int) -> None:
    """The cut is visible."""
    assert printable("x" * limit, message=message) == "x" * limit
    assert printable("x" * (limit + 1), message=message) == "x" * limit + "…"
