"""Reads node configs as they are stored: tolerantly, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import msgspec

from flowactions_plugin.structs import fields_of

Config = TypeVar("Config", bound=msgspec.Struct)
Item = TypeVar("Item")


def read_config(kind: type[Config], stored: Mapping[str, Any]) -> tuple[Config, frozenset[str]]:
    """Read a stored config; a field that cannot be used falls back to its default (§2).

    Unknown keys are ignored, ``null`` counts as not there, and of a list only the items that can be used
    are taken. A required text that is missing reads as empty.

    Args:
        kind: the config's struct.
        stored: the config as the host keeps it.

    Returns:
        The config, and the names (as stored) of the fields that were there but could not be used.
    """
    values: dict[str, Any] = {}
    unusable: set[str] = set()
    for field in fields_of(kind):
        value = stored.get(field.encode_name)
        if value is not None:
            try:
                values[field.name] = _converted(value, field.type)
                continue
            except msgspec.ValidationError:
                unusable.add(field.encode_name)
        if field.required:
            values[field.name] = ""
    return kind(**values), frozenset(unusable)


def read_item(kind: type[Item], value: object) -> Item | None:
    """Read one item of a list in a stored config; ``None`` for one that cannot be used, and is left out."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None


def _converted(value: object, annotation: Any) -> object:
    kind = _unconstrained(annotation)
    if get_origin(kind) is tuple and isinstance(value, list | tuple):
        items = (read_item(get_args(kind)[0], item) for item in value)
        return tuple(item for item in items if item is not None)
    return msgspec.convert(value, kind)


def _unconstrained(annotation: Any) -> Any:
    """Take an annotation's type alone: its constraints are for editors, the node has rules of its own."""
    if get_origin(annotation) is Annotated:
        return get_args(annotation)[0]
    if get_origin(annotation) is Union:
        return Union[tuple(_unconstrained(kind) for kind in get_args(annotation))]  # noqa: UP007  built at run time
    return annotation
