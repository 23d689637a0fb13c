"""The sentences of the contract page that each check tests; made from the page, with its coverage."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

import msgspec

from flowactions_conformance.kit.outcomes import Sentence

FILE: Final = Path(__file__).parent / "clauses.json"


@functools.cache
def _all() -> dict[str, tuple[Sentence, ...]]:
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, tuple[Sentence, ...]])


def sentences(id_: str) -> tuple[Sentence, ...]:
    """Return the sentences that a check tests; none, where it follows from another page than the contract's."""
    return _all().get(id_, ())
