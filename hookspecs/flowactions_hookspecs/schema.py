"""JSON Schema for a flow editor, made from a config struct."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec


def config_schema(config: type[msgspec.Struct], **extra: Any) -> dict[str, Any]:
    """Return the JSON Schema of a config struct, in the subset that draft-07 and 2020-12 have in common.

    The result has no ``$schema``, ``$ref`` or ``$defs``. Titles, descriptions and labelled choices come from
    `msgspec.Meta` on the fields. Names and docstrings of classes are for programmers, so they are omitted.

    Args:
        config: a struct whose fields are annotated with `msgspec.Meta`.
        extra: keywords for the top of the schema, for example ``dependencies`` between fields.
    """
    (schema,), definitions = msgspec.json.schema_components([config], ref_template="{name}")
    for definition in definitions.values():
        for keyword in ("title", "description"):
            definition.pop(keyword, None)
    inlined = cast("dict[str, Any]", _inline(schema, definitions))
    return {**inlined, **extra}


def _inline(schema: object, definitions: Mapping[str, object]) -> object:
    if isinstance(schema, list):
        return [_inline(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        target = _inline(definitions[schema["$ref"]], definitions)
        return {**cast("dict[str, object]", target), **rest}
    return {key: _inline(value, definitions) for key, value in schema.items()}
