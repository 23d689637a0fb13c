"""The tokens of claims: each names the worker whose claim it is, so that operators see who holds a row."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

MARK_DIGITS: Final = 8


def mark_of(worker_id: str) -> str:
    """Return the mark with which the tokens of a worker's claims begin: the end of its id, which is random."""
    return worker_id[-MARK_DIGITS:]


def new_token(mark: str) -> str:
    """Return a token that no other claim has: 32 hexadecimal digits.

    Args:
        mark: of the worker that claims; empty: of nobody in particular.
    """
    return mark + uuid4().hex[len(mark) :]


def is_marked(token: object, worker_id: str) -> bool:
    """Return whether a stored token is of a claim of this worker's."""
    return isinstance(token, str) and token.startswith(mark_of(worker_id))
