from __future__ import annotations

import ast
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
CONTRACT = "flowactions_hookspecs"
PLUGIN = "flowactions_plugin"


def imported(package: Path) -> set[str]:
    """Give the top-level names that a package's modules import."""
    found: set[str] = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(str(node.module).partition(".")[0])
    return found


def test_the_plugin_knows_a_host_by_the_contract_only() -> None:
    """What it imports is the contract, the standard library and its dependencies: no flow engine (§1.7)."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["fast"]]
    names = {requirement.partition("[")[0].partition(">")[0] for requirement in wanted}
    others = imported(ROOT / PLUGIN) - set(sys.stdlib_module_names) - {PLUGIN}
    assert CONTRACT in others
    owners = {name: packages_distributions().get(name, [name]) for name in others - {CONTRACT}}
    strangers = {
        name for name, dists in owners.items() if not {dist.lower().replace("_", "-") for dist in dists} & names
    }
    assert not strangers


@pytest.mark.parametrize("package", ["flowactions_hookspecs", "flowactions_plugin", "flowactions_conformance"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    """Not even within a function: what is read first is clear. The layers between rooms are in pyproject.toml."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=True, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 10
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
