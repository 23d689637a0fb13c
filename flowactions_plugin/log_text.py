"""Escapes external text for a line of the log."""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 200


def printable(text: object) -> str:
    r"""Escape characters that are not printable, so that external text cannot end or forge a log line.

    Control characters, line separators, text-direction marks and lone surrogates become escapes such as ``\n``. Longer
    text is cut to 200 characters.

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
