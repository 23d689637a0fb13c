"""Credentials that nobody was given, made from ones that somebody was: what a host that does not verify them lets in."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

Headers = Mapping[str, str]

_ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_HEXADECIMAL: Final = re.compile(r"[0-9a-fA-F-]+")
_PARTS: Final = re.compile(r"([.:|])")
"""What separates the parts of structured tokens. Hyphens and the like also stand in random ones."""
_UNSIGNED: Final = base64.urlsafe_b64encode(b'{"alg":"none","typ":"JWT"}').decode().rstrip("=")


GARBAGE: Final = (
    "garbage",
    "a.b.c",
    "eyJhbGciOiJub25lIn0.e30.",
    "%00",
    "\xff\xfe\xe9",
    "' OR 1=1 --",
    "%",
    "x" * 4_000,
)
"""Values of a credential that no host has given to anybody."""
HEADERS: Final = ("", "Bearer", "garbage", "Basic Og==", "Bearer a b", 'Digest username="x"')
"""Values of the header Authorization that hold none."""


def unreadable(own: Headers) -> Iterator[tuple[str, Headers]]:
    """Yield headers with credentials that nobody was given, or that cannot be read, in words and as they are.

    Args:
        own: the headers that sign somebody in.
    """
    for value in GARBAGE:
        yield f"the credential {value[:30]!r}", _with(own, [value] * sum(map(bool, _values(own).values())))
        yield f"the header Authorization: Bearer {value[:30]}", {"authorization": f"Bearer {value}"}
    for value in HEADERS:
        yield f"the header Authorization: {value}", {"authorization": value}


def altered(own: Headers, other: Headers) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield what was altered, and the headers with that.

    Args:
        own: the headers that sign somebody in.
        other: those that sign somebody else of the same kind in.
    """
    mine, theirs = {place: value for place, value in _values(own).items() if value}, _values(other)
    # What two people have in common, for example a cookie with the theme, signs neither in.
    personal = {place: value for place, value in mine.items() if value != theirs.get(place)}
    forms = {place: dict(_altered(value, theirs.get(place, ""))) for place, value in personal.items()}
    for how in next(iter(forms.values()), ()):
        # Of several values not all may be credentials: one that is left as it was could be the only one that counts.
        if all(how in each for each in forms.values()):
            yield how, _with(own, [forms[place][how] if place in forms else mine[place] for place in mine])


def _altered(value: str, other: str) -> Iterator[tuple[str, str]]:
    """Yield a credential in each altered form; none of them means what it has meant."""
    places = [index for index, character in enumerate(value) if character in _ALPHABET]
    if not places:
        return
    middle = places[len(places) // 2]
    for name, place in (("first", places[0]), ("middle", middle), ("last", places[-1])):
        yield f"with its {name} character changed", _with_another(value, place)
    yield "without its last quarter", value[: -max(1, len(value) // 4)]
    if (
        not _HEXADECIMAL.fullmatch(value) and value != value.swapcase()
    ):  # of hexadecimal ids, either case may be meant
        yield "with upper and lower case swapped", value.swapcase()
    parts, others = _PARTS.split(value), _PARTS.split(other)
    if len(parts) == len(others):
        for index in range(0, len(parts), 2):
            exchanged = [*parts[:index], others[index], *parts[index + 1 :]]
            if exchanged not in (parts, others):
                yield f"with another one's part {index // 2 + 1} in it", "".join(exchanged)
    if len(parts) > 1 and parts[-1]:
        yield "with an empty last part", "".join(parts[:-1])
        yield "without its last part", "".join(parts[:-2])
    if _is_jwt(parts):
        yield "as a JWT whose header says that it is not signed", f"{_UNSIGNED}.{parts[2]}."
    if other:
        # Without padding: what stands behind it is not read by some decoders.
        yield "joined with another one", value.rstrip("=") + other


def _is_jwt(parts: Sequence[str]) -> bool:
    try:
        header = json.loads(base64.urlsafe_b64decode(parts[0] + "=" * (-len(parts[0]) % 4)))
    except ValueError:
        return False
    return len(parts) == 5 and isinstance(header, dict) and "alg" in header


def _with_another(value: str, place: int) -> str:
    # Half the alphabet further: the last character of base64 may hold bits that mean nothing, but never its first.
    found = _ALPHABET.index(value[place])
    another = _ALPHABET[found + 32 if found < 30 else found - 32 if found >= 32 else found + 26]
    return value[:place] + another + value[place + 1 :]


def _values(headers: Headers) -> dict[str, str]:
    """Return place → credential: what a scheme, or the name of a cookie, stands before."""
    found: dict[str, str] = {}
    for name, text in headers.items():
        for number, (_, value) in enumerate(_pairs(name, text)):
            found[f"{name.lower()} {number}"] = value
    return found


def _pairs(name: str, text: str) -> Sequence[tuple[str, str]]:
    if name.lower() == "cookie":
        cookies = [each.strip().partition("=") for each in text.split(";")]
        return [(f"{key}=", value) for key, _, value in cookies]
    scheme, space, value = text.partition(" ")
    return [(scheme + space, value)] if space else [("", text)]


def _with(headers: Headers, values: Sequence[str]) -> dict[str, str]:
    left = list(values)
    made = {}
    for name, text in headers.items():
        pairs = _pairs(name, text)
        made[name] = "; ".join(before + (left.pop(0) if value else "") for before, value in pairs)
    return made
