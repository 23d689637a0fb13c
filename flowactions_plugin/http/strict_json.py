"""Bodies of requests, decoded without conversions."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from litestar.dto import AbstractDTO
from msgspec import Meta

from flowactions_hookspecs.checks import MAX_ID_LENGTH
from flowactions_plugin.errors import JSONInvalid
from flowactions_plugin.http.form_words import error_message
from flowactions_plugin.http.json_text import parse
from flowactions_plugin.http.problems import MAX_ERRORS, WRONG_FORM, Problem
from flowactions_plugin.structs import fields_of

T = TypeVar("T")

NO_NUL: Final = r"^[^\x00]+$"
"""PostgreSQL's text cannot hold NUL."""

Id: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_LENGTH, pattern=NO_NUL)]
"""An id of the host's, in a body."""

_AT: Final = re.compile(r" - at `\$?(?P<path>[^`]*)`$")


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
        raise Problem("invalid_request", WRONG_FORM, _errors(value, kind)[:MAX_ERRORS]) from None


class StrictJSON(AbstractDTO[T]):
    """Decodes a handler's ``data`` with `read_struct`; its OpenAPI schema is that of the struct."""

    def decode_bytes(self, value: bytes) -> T:
        """Decode a body that is not empty."""
        return read_struct(value, self.model_type)

    @classmethod
    def create_for_field_definition(cls, *_: Any, **__: Any) -> None:
        """Do nothing, because there is no transfer model."""

    @classmethod
    def create_openapi_schema(cls, field_definition: Any, handler_id: str, schema_creator: Any) -> Any:  # noqa: ARG003
        """Describe the struct itself."""
        return schema_creator.for_field_definition(field_definition)

    @classmethod
    def generate_field_definitions(cls, model_type: type[Any]) -> Any:
        """Not called, because there is no transfer model."""
        raise NotImplementedError

    @classmethod
    def detect_nested_field(cls, field_definition: Any) -> bool:
        """Not called, because there is no transfer model."""
        raise NotImplementedError


def _errors(value: dict[str, Any], kind: Any) -> list[dict[str, str]]:
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
            text = str(exc)
            found = _AT.search(text)
            path = name + (found["path"] if found else "")
            errors.append({"path": path, "message": error_message(text[: found.start()] if found else text)})
    if kind.__struct_config__.forbid_unknown_fields:
        errors += [{"path": name, "message": "is not known"} for name in value if name not in fields]
    return errors
