"""Modules import each other in one direction, also where only type checkers read the import."""

from __future__ import annotations

import grimp
import pytest

PACKAGES = ("flowactions_hookspecs", "flowactions_plugin")


@pytest.mark.parametrize("package", PACKAGES)
def test_no_imports_form_a_circle(package: str) -> None:
    """Neither the modules of the contract nor the rooms of the plugin."""
    graph = grimp.build_graph(package, exclude_type_checking_imports=False, cache_dir=None)
    assert graph.nominate_cycle_breakers(package) == set()
