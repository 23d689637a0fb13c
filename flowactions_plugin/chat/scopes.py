"""The scopes of the app: what is requested, what was granted, and what is missing (§2.3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

SCOPES: Final = ("chat:write", "channels:read", "groups:read", "users:read", "im:write")
"""Requested exactly so (§2.3)."""

MOST_SCOPES: Final = 100

_SEPARATOR = re.compile(r"[,\s]+")
_SCOPE = re.compile(r"[A-Za-z0-9:._-]{1,100}", re.ASCII)


def read_scopes(text: object) -> tuple[str, ...]:
    """Read a list of scopes, as a header, an answer or a column has it.

    Args:
        text: separated by commas. What is no text has none, and what cannot be a scope is left out.
    """
    if not isinstance(text, str):
        return ()
    found = dict.fromkeys(scope for scope in _SEPARATOR.split(text) if _SCOPE.fullmatch(scope))
    return tuple(found)[:MOST_SCOPES]


def write_scopes(scopes: Iterable[str]) -> str:
    """Write a list of scopes as a column has it."""
    return ",".join(scopes)


def not_granted(granted: Sequence[str]) -> tuple[str, ...]:
    """Returns the requested scopes that are not among the granted ones.

    Args:
        granted: what the provider said; when it said nothing, nothing counts as missing.
    """
    return tuple(scope for scope in SCOPES if granted and scope not in granted)


def in_order(scopes: Iterable[str]) -> tuple[str, ...]:
    """Sort scopes: those that are requested first, in that order; each once."""
    unique = dict.fromkeys(scopes)
    return tuple(sorted(unique, key=lambda scope: SCOPES.index(scope) if scope in SCOPES else len(SCOPES)))


def is_covered(scope: str, used: Iterable[str]) -> bool:
    """Returns whether a scope, or a special form of it such as ``chat:write.public``, belongs to what a call used."""
    return any(scope == each or scope.startswith((f"{each}.", f"{each}:")) for each in used)
