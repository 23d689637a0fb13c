"""Finds the function that makes the host."""

from __future__ import annotations

import importlib
from typing import Any

from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.under_test import Factory


def load_factory(name: str) -> Factory:
    """Import a factory.

    Args:
        name: ``package.module:attribute``.

    Raises:
        DriverFault: there is none; the message says what is missing.
    """
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise DriverFault(f"name the factory as package.module:make_host, not {name!r}")
    try:
        found: Any = importlib.import_module(module)
    except Exception as exc:
        raise DriverFault(f"{module} cannot be imported: {type(exc).__name__}: {exc}") from exc
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise DriverFault(f"{module} has no {attribute}") from None
    if not callable(found):
        raise DriverFault(f"{name} is not a function")
    factory: Factory = found
    return factory
