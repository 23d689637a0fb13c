"""Reads bodies and queries strictly: JSON that every parser reads alike, without conversions, and known names, each once."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, NoReturn, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec
from litestar.dto import AbstractDTO
from msgspec import Meta

from flowactions_hookspecs.checks import MAX_ID_LENGTH
from flowactions_plugin.errors import RequestInvalid
from flowactions_plugin.http.problems import A_MOMENT, Problem, error_message, wrong_form
from flowactions_plugin.structs import fields_of

T = TypeVar("T")

NO_NUL: Final = r"^[^\x00]+$"
"""PostgreSQL's text cannot hold NUL."""

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=NO_NUL)]
"""An id of the host's, in a body."""

AgentId: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=r"^(?!\.{1,2}$)[^/\x00]+$")
]
"""The id of an agent, in a body: it stands in paths elsewhere."""

Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]
"""A time in ISO 8601 (RFC 3339) with a time zone."""

Check: TypeAlias = Callable[[str], str | None]
"""Tells what is wrong with a value of a query; ``None``: nothing."""

_AT: Final = re.compile(r" - at `\$?(?P<path>[^`]*)`$")


def text(value: str) -> str | None:
    """Any text that is not empty."""
    return None if value else "must not be empty"


def integer(value: str) -> str | None:
    """ASCII digits, not `1.0` and not digits of other scripts."""
    return None if re.fullmatch(r"-?[0-9]{1,9}", value) else "must be a whole number"


def moment(value: str) -> str | None:
    """Read a `Moment`."""
    try:
        msgspec.convert(value, Moment)
    except msgspec.ValidationError:
        return f"must be {A_MOMENT}; write + as %2B"
    return None


def check_query(raw: bytes, known: Mapping[str, Check]) -> None:
    """Refuse a query string with unknown, repeated or invalid parameters.

    Args:
        raw: the received bytes, without the question mark.
        known: name → check of its value.

    Raises:
        Problem: 400, with all wrong parameters.
    """
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise Problem("invalid_request", "The query is not percent-encoded UTF-8.") from None
    counts = Counter(name for name, _ in pairs)
    errors = []
    for name, value in dict(pairs).items():
        if name not in known:
            wrong: str | None = "is not known"
        elif counts[name] > 1:
            wrong = "is given more than once"
        else:
            wrong = known[name](value)
        if wrong is not None:
            errors.append({"path": name, "message": wrong})
    if errors:
        raise wrong_form(errors)


def parse_object(body: bytes, *, strictly: bool = True) -> dict[str, Any]:
    """Parse the JSON object of a body in UTF-8 (RFC 8259) that all parsers read alike (RFC 7493).

    Args:
        body: the received bytes.
        strictly: whether texts are refused that hold half of a surrogate pair.

    Raises:
        RequestInvalid: it is not UTF-8, not JSON or not an object; a name occurs twice in an object; a number is too large; text
            holds half of a surrogate pair; or it is nested too deeply.
    """
    try:
        value = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
        if strictly:
            msgspec.json.decode(body)
    except UnicodeDecodeError:
        raise RequestInvalid("The body is not UTF-8.") from None
    except RecursionError:
        raise RequestInvalid("The body is nested too deeply.") from None
    except json.JSONDecodeError as exc:
        raise RequestInvalid(f"The body is not valid JSON in line {exc.lineno}, column {exc.colno}.") from None
    except ValueError:  # of the first parser for integers that are too long, of the second for the other cases
        raise RequestInvalid("A number is too large, or a text holds half of a surrogate pair.") from None
    if not isinstance(value, dict):
        raise RequestInvalid("The body is not a JSON object.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise RequestInvalid("A name occurs twice in an object.")
    return found


def _no_number(name: str) -> NoReturn:
    raise RequestInvalid(f"The body is not valid JSON: {name} is no number.")


def read_struct(body: bytes, kind: type[T]) -> T:
    """Decode a request's body (§4).

    Args:
        body: the received bytes.
        kind: a `msgspec.Struct`.

    Raises:
        RequestInvalid: it is not the text of one object.
        Problem: 400, with all wrong fields.
    """
    value = parse_object(body)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise wrong_form(_errors(value, kind)) from None


def _errors(value: dict[str, Any], kind: Any) -> list[dict[str, str]]:
    """Return what is wrong with each field of a body."""
    fields = {field.encode_name: field for field in fields_of(kind)}
    errors = []
    for name, field in fields.items():
        if name not in value:
            if field.required:
                errors.append({"path": name, "message": "is required"})
            continue
        try:
            msgspec.convert(value[name], field.type)
        except msgspec.ValidationError as exc:
            said, found = str(exc), _AT.search(str(exc))
            path = name + (found["path"] if found else "")
            errors.append({"path": path, "message": error_message(said[: found.start()] if found else said)})
    if kind.__struct_config__.forbid_unknown_fields:
        errors += [{"path": name, "message": "is not known"} for name in value if name not in fields]
    return errors


class StrictJSON(AbstractDTO[Any]):
    """Decodes a handler's ``data`` with `read_struct`; its OpenAPI schema is that of the struct, so it has no transfer model."""

    def decode_bytes(self, value: bytes) -> Any:
        """Decode a body that is not empty."""
        data = self.asgi_connection.route_handler.parsed_data_field
        return read_struct(value, data.annotation)

    @classmethod
    def create_for_field_definition(cls, *_: Any, **__: Any) -> None:
        """Do nothing."""

    @classmethod
    def create_openapi_schema(cls, field_definition: Any, handler_id: str, schema_creator: Any) -> Any:  # noqa: ARG003
        """Describe the struct itself."""
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Any:
        """Not called."""
        raise NotImplementedError

    @classmethod
    def detect_nested_field(cls, field_definition: Any) -> bool:
        """Not called."""
        raise NotImplementedError
