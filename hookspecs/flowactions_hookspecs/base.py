"""The base class of every struct of the contract, and the contract's version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
else:
    # msgspec and frameworks resolve annotations at run time, and the contract imports no SQLAlchemy.
    AsyncConnection = AsyncEngine = Any

__all__ = ["CONTRACT_VERSION", "AsyncConnection", "AsyncEngine", "ContractStruct"]

CONTRACT_VERSION: Final = (1, 0)
"""Major and minor version of the contract. A plugin states the version it needs: ``flowactions_contract = (1, 0)``."""


class ContractStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the contract's structs: immutable, built by keyword, camelCase in JSON and snake_case in Python.

    Decoding accepts unknown fields, so that data of a newer version can be read. msgspec does not inherit ``kw_only``:
    every struct of the contract states it.
    """
