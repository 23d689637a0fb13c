"""Makes external text fit for a line of the log, a terminal, a page or a column."""

from __future__ import annotations

import re
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plural(count: int, one: str, many: str | None = None, *, exact: bool = True) -> str:
    """Return a count with its noun, and a plus sign where it is the least that there are."""
    return f"{count:,}{'' if exact else '+'} {one if count == 1 and exact else many or one + 's'}"


def size(count: int) -> str:
    """Return a number of bytes as people read it: in KB (1,024 bytes), and below one in bytes."""
    return f"{count} bytes" if count < 1024 else f"{f'{count / 1024:,.1f}'.removesuffix('.0')} KB"


_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def span(milliseconds: float) -> str:
    """Return a duration as people read it: in its two largest units, ``2 h 5 min``; below a second in milliseconds."""
    rest = max(0, int(milliseconds))
    if rest < 10_000:
        return f"{rest} ms" if rest < 1000 else f"{rest / 1000:.1f} s"
    counts: list[tuple[int, str]] = []
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        if count or counts:
            counts.append((count, unit))
    return " ".join(f"{count} {unit}" for count, unit in counts[:2] if count)


def printable(text: object, *, message: bool = False) -> str:
    r"""Return a text on one line, so that nothing from outside can end a log line or forge one.

    Control characters, line separators, text-direction marks and lone surrogates are replaced: in an id, a name or a
    code by escapes such as ``\n``, in a message by spaces. What is longer than 200 characters, or 1000 of a message,
    is cut.

    Args:
        text: from outside.
        message: whether it is one for people, such as the reason of a failure.
    """
    limit = 1000 if message else 200
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


def is_unicode(text: str) -> bool:
    """Return whether a text from outside can be stored and encoded: not with half a surrogate pair."""
    return text.isascii() or not _SURROGATE.search(text)


def storable(text: str | None) -> str | None:
    """Return a reason in a form that every database can store, cut to 1000 characters: it may quote what a receiver sent."""
    if text is None:
        return None
    return CONTROL.sub(" ", text[:1000]).encode("utf-8", "replace").decode()
