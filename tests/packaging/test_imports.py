from __future__ import annotations

import ast
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

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
