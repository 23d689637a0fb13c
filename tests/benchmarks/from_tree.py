"""Run a module, or call a coroutine function, with the packages of one source tree.

    python tests/benchmarks/from_tree.py [--without MODULE] TREE (MODULE ARGUMENT … | MODULE:FUNCTION JSON …)

`revisions` runs it as a script, so that it needs nothing of the tree whose packages are used. It ends with an error when
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
    module, _, function = options.run.partition(":")
    if function:
        call = getattr(importlib.import_module(module), function)
        asyncio.run(call(*map(json.loads, options.arguments)))
    else:
        sys.argv = [module, *options.arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
