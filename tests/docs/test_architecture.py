from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions

ROOT = Path(__file__).parents[2]
PLUGIN = "flowactions_plugin"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
TEXT = PAGE.read_text()

MOST_HOPS = 15


def names() -> list[str]:
    """Give the dotted names of the page and of the one on claims, of the plugin and of the contract."""
    pages = TEXT + (PAGE.parent / "claiming.md").read_text()
    found = re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", pages)
    return sorted({name for name in found if not name.endswith((".py", ".toml"))})


def exists(name: str) -> bool:
    """Tell whether a dotted name leads to a module, function, class or method."""
    full = name if name.startswith("flowactions_") else f"{PLUGIN}.{name}"
    parts = full.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def hops(heading: str) -> list[str]:
    """Give the names that begin the numbered items under a heading."""
    section = TEXT.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([\w.]+)`", section, re.MULTILINE)


def listed(pattern: str) -> set[str]:
    """Give what the trees of the page list under the plugin's folder."""
    blocks = re.findall(rf"```text\n{PLUGIN}/\n(.*?)```", TEXT, re.DOTALL)
    return set(re.findall(pattern, "\n".join(blocks), re.MULTILINE))


@pytest.mark.parametrize("name", names())
def test_a_name_of_the_page_is_there(name: str) -> None:
    """Each dotted name leads to a module, function, class or method of the plugin or the contract."""
    assert exists(name)


def test_a_name_that_is_not_there_is_found() -> None:
    """The check tells a method that is there from one that is not."""
    assert exists(f"{FlowActions.__module__}.FlowActions.reach")
    assert not exists(f"{FlowActions.__module__}.FlowActions.nowhere")
    assert not exists("nodes.nowhere")


def test_the_way_of_a_webhook_is_short() -> None:
    """It has at most fifteen hops, begins at the facade and ends where the final state is written."""
    way = hops("The way of a webhook")
    assert 10 <= len(way) <= MOST_HOPS
    assert way[0].endswith("FlowActions.reach")
    assert way[-1].endswith("complete")
    assert hops("The way of a chat message")
    assert len(hops("The way of an inbound event")) > 6


def test_every_folder_of_the_plugin_is_explained() -> None:
    """The tree of the page is that of the plugin: each folder has a line, and each line a folder."""
    real = {path.parent.name for path in (ROOT / PLUGIN).glob("*/__init__.py")}
    assert listed(r"^    (\w+)/") == real


def test_every_module_outside_a_folder_is_explained() -> None:
    """So are the modules beside the folders."""
    real = {path.name for path in (ROOT / PLUGIN).glob("*.py")} - {"__init__.py"}
    assert listed(r"^    (\w+\.py)") == real


def test_every_folder_at_the_top_is_explained() -> None:
    """The tree of the page names each folder of the repository that holds Python code or documents."""
    tops = {path.relative_to(ROOT).parts[0] for kind in ("*.py", "*.md") for path in ROOT.glob(f"*/**/{kind}")}
    real = {top for top in tops if not top.startswith(".") and top not in {"build", "dist", "node_modules"}}
    assert {name.partition("/")[0] for name in re.findall(r"^(\w[\w/]*)/$", TEXT, re.MULTILINE)} == real


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z_/]+\.py|[a-z_]+/[a-z_/]*)`", TEXT))))
def test_a_path_of_the_page_is_there(path: str) -> None:
    """Where to change what leads to a file or a folder of the plugin."""
    assert (ROOT / PLUGIN / path).exists()
