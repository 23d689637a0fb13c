"""The tree of errors."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re

import flowactions_plugin
from flowactions_hookspecs import FlowActionsError
from flowactions_plugin import errors


def drawn() -> dict[str, str]:
    """Returns each drawn class and its parent."""
    tree: dict[str, str] = {}
    path = ["FlowActionsError"]
    for line in (errors.__doc__ or "").splitlines():
        found = re.fullmatch(r"((?:│   |    )*)[├└]── (\w+) +\S.*", line)
        if found is not None:
            depth = len(found[1]) // 4
            path[depth + 1 :] = [found[2]]
            tree[found[2]] = path[depth]
    return tree


def defined() -> dict[str, str]:
    """Returns each public exception class that a module of the plugin defines, and its base classes."""
    classes: dict[str, str] = {}
    for module in pkgutil.walk_packages(flowactions_plugin.__path__, "flowactions_plugin."):
        if ".migrations." in module.name:
            continue  # Alembic executes these
        for name, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(kind, BaseException) and kind.__module__ == module.name and not name.startswith("_"):
                classes[name] = ", ".join(base.__name__ for base in kind.__bases__)
    return classes


def test_the_tree_shows_every_error_of_the_plugin_below_its_base() -> None:
    """An error that is not drawn, is drawn below another base or no longer exists fails here."""
    assert drawn() == defined()


def test_every_error_has_a_default_message() -> None:
    """The first line of a class's docstring, also for classes that are defined elsewhere."""
    for kind in (getattr(errors, name) for name in drawn() if hasattr(errors, name)):
        assert issubclass(kind, FlowActionsError)
        assert str(kind()) == kind.__doc__.partition("\n")[0]
