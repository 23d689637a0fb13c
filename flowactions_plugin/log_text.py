"""Escapes external text for a line of the log."""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 200
MOST_OF_A_MESSAGE: Final = 1000


def printable(text: object, *, message: bool = False) -> str:
    r"""Return a text on one line, so that nothing from outside can end a log line or forge one.

    Control characters, line separators, text-direction marks and lone surrogates are replaced: in an id, a name or a
    code by escapes such as ``\n``, in a message by spaces. What is longer than 200 characters, or 1000 of a message,
    is cut.

    Args:
        text: from outside.
        message: whether it is one for people, such as the reason of a failure.
    """
    limit = MOST_OF_A_MESSAGE if message else MOST_CHARACTERS
    shown = str(text)
    if len(shown) > limit:
        shown = f"{shown[:limit]}…"
    if shown.isprintable():
        return shown
    return "".join(
        character if character.isprintable() else " " if message else _escaped(character) for character in shown
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
