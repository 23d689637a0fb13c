"""What every struct of the contract has in common."""

from __future__ import annotations

import msgspec


class ContractStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Immutable, built by keyword, camelCase on the wire and snake_case in Python.

    Unknown fields are accepted when decoding, so that a newer peer can be read.
    """
