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
    """What it imports is the contract, the standard library and its dependencies: no flow engine."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["fast"], *extras["agents"]]
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


def asks_which_database(tree: ast.AST) -> set[str]:
    """Give the code of a module by which it can know which of the two databases it has."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            asks = node.value in {"sqlite", "postgresql"}
        elif isinstance(node, ast.Compare):
            asks = "dialect" in ast.unparse(node)
        else:
            asks = isinstance(node, ast.ImportFrom) and (
                node.module == "sqlalchemy.dialects"
                or bool({"SQLite", "PostgreSQL"} & {alias.name for alias in node.names})
            )
        found |= {ast.unparse(node)} if asks else set()
    return found


def test_only_storage_asks_which_database_it_is() -> None:
    """What the databases do differently is a method or a property of the dialect."""
    found = {path: asks_which_database(ast.parse(path.read_text())) for path in (ROOT / PLUGIN).rglob("*.py")}
    assert {path.relative_to(ROOT / PLUGIN).parts[0] for path, asked in found.items() if asked} == {"storage"}


def test_the_rule_finds_who_asks() -> None:
    """By a comparison, a mapping, or an import of a dialect."""
    assert asks_which_database(ast.parse("database.dialect != name"))
    assert asks_which_database(ast.parse("{'sqlite': 8.0, 'postgresql': 3.0}[name]"))
    assert asks_which_database(ast.parse("from sqlalchemy.dialects import postgresql"))
    assert asks_which_database(ast.parse("from flowactions_plugin.storage.sqlite import SQLite"))
    assert not asks_which_database(ast.parse("from flowactions_plugin.storage.sqlite import Deadline"))
