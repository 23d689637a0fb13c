"""pytest's plugin, named on the command line: ``-p flowactions_conformance.pytest_plugin``.

It is no installed plugin that loads itself. Without ``--flowactions-host`` it does nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

SUITE: Final = Path(__file__).parent / "suite.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Define the options."""
    group = parser.getgroup("flowactions", "conformance of a flowactions host")
    group.addoption("--flowactions-host", metavar="MODULE:NAME", help="the factory that makes the host")
    group.addoption("--flowactions-child", action="store_true", help="run every host as a child process")
    group.addoption(
        "--flowactions-database", metavar="URL", help="a PostgreSQL whose user may create databases"
    )
    group.addoption(
        "--flowactions-report", metavar="DIR", help="write report.json with its schema, and report.html"
    )
    group.addoption("--flowactions-baseline", metavar="FILE", help="check id = why its failure is accepted")
    group.addoption("--flowactions-strict", action="store_true", help="a should counts as a must")
    group.addoption(
        "--flowactions-time-scale",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="make all limits longer or shorter",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the rest, when a host is named."""
    if config.getoption("flowactions_host"):
        from flowactions_conformance.kit.in_pytest.items import KitPlugin  # noqa: PLC0415

        config.pluginmanager.register(KitPlugin(config), "flowactions-conformance")


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Raise an error that says what is missing, if the suite is run without a host."""
    if file_path == SUITE and not parent.config.getoption("flowactions_host"):
        raise pytest.UsageError("name your host: --flowactions-host package.module:make_host")
