"""The fields of a struct."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec.structs import FieldInfo


@cache
def fields_of(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    """Return the fields of a struct. msgspec evaluates their annotations at each call, which takes over 0.1 ms."""
    found: Any = msgspec.structs.fields(kind)
    return tuple(found)
