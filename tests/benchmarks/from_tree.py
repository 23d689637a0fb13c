"""Run a module, or call a coroutine function, with the packages of one source tree.

    python tests/benchmarks/from_tree.py [--without MODULE] TREE (MODULE ARGUMENT … | MODULE:FUNCTION)

A function gets its arguments as JSON from standard input. `revisions` runs it as a script, so that it needs nothing of the tree whose packages are used. It ends with an error when
a package comes from elsewhere, as from an editable install of another tree.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import runpy
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("flowactions_plugin", "flowactions_hookspecs", "flowactions_conformance", "tests.support")


def use_only(tree: Path) -> None:
    """Put a tree's packages in front of all others, and check that they are found there."""
    # The folder of this script is another tree's.
    sys.path[:1] = [str(tree), str(tree / "hookspecs"), str(tree / "conformance")]
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        origin = spec.origin if spec is not None else None
        if origin is None or not Path(origin).resolve().is_relative_to(tree):
            raise SystemExit(f"{name} comes from {origin}, not from {tree}")
    imported: Any = importlib.import_module("flowactions_plugin")
    assert Path(imported.__file__).resolve().is_relative_to(tree)


def hide_missing_plugins() -> None:
    """Hide the entry points of the installed tree whose modules the tree in use does not have.

    The environment is installed from another revision, which may have more plugins.
    """
    found_by: Any = metadata.Distribution.entry_points.fget  # type: ignore[attr-defined]

    def entry_points(distribution: metadata.Distribution) -> metadata.EntryPoints:
        found: metadata.EntryPoints = found_by(distribution)
        return metadata.EntryPoints(
            each for each in found if each.group != "flowactions" or _is_there(each.module)
        )

    metadata.Distribution.entry_points = property(entry_points)  # type: ignore[assignment,method-assign]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without", metavar="MODULE", help="a library that is to appear as not installed")
    parser.add_argument("tree", type=Path)
    parser.add_argument("run", metavar="MODULE[:FUNCTION]")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.without:
        sys.modules[options.without] = None  # type: ignore[assignment]  # an import of it fails
    use_only(options.tree.resolve())
    hide_missing_plugins()
    module, _, function = options.run.partition(":")
    if function:
        call = getattr(importlib.import_module(module), function)
        asyncio.run(call(*json.load(sys.stdin)))
    else:
        sys.argv = [module, *options.arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
