"""Reads the forms and queries of the pages, strictly: known fields, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, Final
from urllib.parse import parse_qsl

from litestar import Request

from flowactions_plugin.http.auth import read_body
from flowactions_plugin.http.problems import Problem

MAX_FIELDS: Final = 2000
"""A form selects up to a thousand rows of a page."""


def read_fields(raw: bytes, known: Collection[str], repeated: Collection[str] = ()) -> dict[str, str]:
    """Decode a form or a query.

    Args:
        raw: ``application/x-www-form-urlencoded``.
        known: names of fields; empty ones are left out of the result.
        repeated: those that may occur several times, joined by commas.

    Raises:
        Problem: 400, it is not UTF-8, has too many fields, an unknown or a repeated one, or one with NUL.
    """
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise Problem("invalid_request", "What was sent is not percent-encoded UTF-8, or too long.") from None
    counts = Counter(name for name, _ in pairs)
    for name, value in pairs:
        if name not in known:
            raise Problem("invalid_request", f"There is no field {name[:40]!r} here.")
        if counts[name] > 1 and name not in repeated:
            raise Problem("invalid_request", f"The field {name!r} is given more than once.")
        if "\0" in value:
            raise Problem("invalid_request", f"The field {name!r} must not hold a NUL character.")
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if value.strip():
            found.setdefault(name, []).append(value.strip())
    return {name: ",".join(values) for name, values in found.items()}


async def read_form(
    request: Request[Any, Any, Any], known: Collection[str], repeated: Collection[str] = ()
) -> dict[str, str]:
    """Read a request's form, as `read_fields` does.

    Raises:
        Problem: as there.
        RequestEntityTooLarge: it is longer than 64 KiB.
    """
    return read_fields(await read_body(request), known, repeated)


def read_query(
    request: Request[Any, Any, Any], known: Collection[str], repeated: Collection[str] = ()
) -> dict[str, str]:
    """Read a request's query, as `read_fields` does.

    Raises:
        Problem: as there.
    """
    return read_fields(request.scope.get("query_string", b""), known, repeated)
