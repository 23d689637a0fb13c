"""Escapes external text for a line of the log, a terminal or a page."""

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
    if message and not shown.isprintable():
        return "".join(character if character.isprintable() else " " for character in shown)
    return escaped(shown)


def escaped(text: str, keep: str = "") -> str:
    r"""Return a text with escapes such as ``\x1b`` for all that is not printable, of any length.

    Args:
        text: from outside.
        keep: characters that are left as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )
