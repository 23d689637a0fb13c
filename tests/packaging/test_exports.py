from __future__ import annotations

import importlib
import types
from importlib import metadata

import pytest


@pytest.mark.parametrize("package", ["flowactions_hookspecs", "flowactions_plugin", "flowactions_conformance"])
def test_all_names_exactly_what_a_package_exports(package: str) -> None:
    """What is public is in __all__, in order, and nothing else is."""
    module = importlib.import_module(package)
    exported = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    declared = list(getattr(module, "__all__", []))
    # What a module imports only when it is asked for.
    exported |= {name for name in declared if name not in vars(module) and hasattr(module, name)}
    assert set(declared) == exported
    assert len(declared) == len(set(declared))


def test_every_error_explains_itself() -> None:
    """An error raised without a message says what its docstring says."""
    errors = importlib.import_module("flowactions_hookspecs.errors")
    for name in vars(errors):
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning):
            assert str(value()) == (value.__doc__ or "").partition("\n")[0]
            assert name in (errors.__doc__ or ""), f"{name} is missing from the drawn tree"


def test_the_installed_distribution_names_its_plugin() -> None:
    """The entry point that hosts look for is there."""
    (entry_point,) = metadata.entry_points(group="flowactions", name="flowactions-plugin")
    assert entry_point.value == "flowactions_plugin.plugin"
