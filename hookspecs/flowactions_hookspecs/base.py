"""What every struct of the contract has in common, and the contract's version."""

from __future__ import annotations

from typing import Final

import msgspec

CONTRACT_VERSION: Final = (1, 0)
"""Major and minor version of the contract. A plugin states what it needs as ``flowactions_contract = (1, 0)``."""


class ContractStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Immutable, built by keyword, camelCase on the wire and snake_case in Python.

    Unknown fields are accepted when decoding, so that a newer peer can be read. msgspec does not inherit
    ``kw_only``: every struct of the contract states it.
    """
