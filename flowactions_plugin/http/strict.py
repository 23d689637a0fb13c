"""Reads bodies and queries strictly: JSON without conversions, known names, each once, with unambiguous values."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl

import msgspec
from litestar.dto import AbstractDTO
from msgspec import Meta

from flowactions_hookspecs.checks import MAX_ID_LENGTH
from flowactions_plugin.errors import JSONInvalid
from flowactions_plugin.http.json_text import parse
from flowactions_plugin.http.problems import Problem, error_message, wrong_form
from flowactions_plugin.structs import fields_of

T = TypeVar("T")

NO_NUL: Final = r"^[^\x00]+$"
"""PostgreSQL's text cannot hold NUL."""

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=NO_NUL)]
"""An id of the host's, in a body."""

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
        return "must be a date and time with time zone such as 2030-01-31T12:00:00Z; write + as %2B"
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


def read_struct(body: bytes, kind: type[T]) -> T:
    """Decode a request's body (§4).

    Args:
        body: the received bytes.
        kind: a `msgspec.Struct`.

    Raises:
        Problem: 400, with all wrong fields.
    """
    try:
        value = parse(body)
    except JSONInvalid as exc:
        raise Problem("invalid_request", str(exc)) from None
    if not isinstance(value, dict):
        raise Problem("invalid_request", "The body is not a JSON object.")
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


class StrictJSON(AbstractDTO[T]):
    """Decodes a handler's ``data`` with `read_struct`; its OpenAPI schema is that of the struct, so it has no transfer model."""

    def decode_bytes(self, value: bytes) -> T:
        """Decode a body that is not empty."""
        return read_struct(value, self.model_type)

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
