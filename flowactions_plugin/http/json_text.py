"""Unambiguous JSON: what every parser reads alike."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from flowactions_plugin.errors import JSONInvalid


def parse(body: bytes, *, strictly: bool = True) -> Any:
    """Parse JSON in UTF-8 (RFC 8259) that all parsers read alike (RFC 7493).

    Args:
        body: the raw bytes.
        strictly: whether texts are refused that hold half of a surrogate pair.

    Raises:
        JSONInvalid: it is not UTF-8 or not JSON; a name occurs twice in an object; a number is too large; text holds half
            of a surrogate pair; or it is nested too deeply.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
        if strictly:
            msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise JSONInvalid("The body is not UTF-8.") from None
    except RecursionError:
        raise JSONInvalid("The body is nested too deeply.") from None
    except json.JSONDecodeError as exc:
        raise JSONInvalid(f"The body is not valid JSON in line {exc.lineno}, column {exc.colno}.") from None
    except (
        ValueError
    ):  # the first parser raises it for integers that are too long, the second for the other cases
        raise JSONInvalid("A number is too large, or a text holds half of a surrogate pair.") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise JSONInvalid("A name occurs twice in an object.")
    return found


def _no_number(name: str) -> NoReturn:
    raise JSONInvalid(f"The body is not valid JSON: {name} is no number.")
