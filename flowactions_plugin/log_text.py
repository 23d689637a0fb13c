"""Text from outside, made fit for a line of the log."""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 200


def printable(text: object) -> str:
    r"""Escape what does not print, so that nothing from outside can end a log line or forge one.

    Control characters, line separators, text-direction marks and lone surrogates become escapes such as ``\n``. What
    is longer than 200 characters is cut.

    Args:
        text: an id, a name or a code.
    """
    shown = str(text)
    if len(shown) > MOST_CHARACTERS:
        shown = f"{shown[:MOST_CHARACTERS]}…"
    if shown.isprintable():
        return shown
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in shown
    )
