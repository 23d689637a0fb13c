"""The tokens of claims: each names the worker whose claim it is, so that operators see who holds a row."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

PREFIX_DIGITS: Final = 8


def token_prefix(worker_id: str) -> str:
    """Return what the tokens of a worker's claims begin with: the end of its id, which is random."""
    return worker_id[-PREFIX_DIGITS:]


def new_token(prefix: str) -> str:
    """Return a token that no other claim has: 32 hexadecimal digits.

    Args:
        prefix: of the worker that claims; empty: of nobody in particular.
    """
    return prefix + uuid4().hex[len(prefix) :]


def is_token_of(token: object, worker_id: str) -> bool:
    """Return whether a stored token is of a claim of this worker's."""
    return isinstance(token, str) and token.startswith(token_prefix(worker_id))
