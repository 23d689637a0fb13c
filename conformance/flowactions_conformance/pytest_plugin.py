"""pytest's plugin, named on the command line: ``-p flowactions_conformance.pytest_plugin``.

It is no installed plugin that loads itself. Without ``--flowactions-host`` it does nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import pytest

SUITE: Final = Path(__file__).parent / "suite.py"
PLUGIN: Final = "flowactions-conformance"
SENT: Final = "flowactions_report"
"""Where one of xdist's processes puts the report for the one that prints it."""

_named: list[type] = []


def named_suite() -> type | None:
    """Return the class of tests of the host that the command line names; ``None``: it names none."""
    return _named[-1] if _named else None


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
    """Make the suite, when a host is named."""
    if config.getoption("flowactions_host"):
        config.pluginmanager.register(_Plugin(config), PLUGIN)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> None:
    """Raise an error that says what is missing, if the suite is run without a host."""
    if file_path == SUITE and not parent.config.getoption("flowactions_host"):
        raise pytest.UsageError("name your host: --flowactions-host package.module:make_host")


class _Plugin:
    """Makes the suite of the options, and prints and writes its report."""

    def __init__(self, config: pytest.Config) -> None:
        from flowactions_conformance.kit.baseline import BaselineInvalid, read_baseline  # noqa: PLC0415
        from flowactions_conformance.kit.in_pytest import conformance_suite  # noqa: PLC0415

        base = config.invocation_params.dir
        file, folder = config.getoption("flowactions_baseline"), config.getoption("flowactions_report")
        if not 0 < config.getoption("flowactions_time_scale") < math.inf:
            raise pytest.UsageError("--flowactions-time-scale takes a number above 0")
        try:
            self._suite: Any = conformance_suite(
                config.getoption("flowactions_host"),
                child=config.getoption("flowactions_child"),
                database=config.getoption("flowactions_database"),
                baseline=read_baseline(base / file) if file else None,
                strict=config.getoption("flowactions_strict"),
                time_scale=config.getoption("flowactions_time_scale"),
            )
        except (BaselineInvalid, LookupError) as exc:
            raise pytest.UsageError(str(exc)) from exc
        self._folder: Path | None = base / folder if folder else None
        _named.append(self._suite)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Give the report to the process that prints it."""
        report = self._suite.suite.report
        sent = getattr(session.config, "workeroutput", None)
        if sent is not None and report is not None:
            from flowactions_conformance.kit.report.written import encoded  # noqa: PLC0415

            sent[SENT] = encoded(report).decode()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the report of one of xdist's processes."""
        import msgspec  # noqa: PLC0415

        from flowactions_conformance.kit.outcomes import Report  # noqa: PLC0415

        sent = getattr(node, "workeroutput", {}).get(SENT)
        if sent is not None:
            self._suite.suite.report = msgspec.json.decode(sent, type=Report)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print which profiles are proved, and which are not, and write the report."""
        from flowactions_conformance.kit.report.terminal import closing_lines, profile_lines  # noqa: PLC0415
        from flowactions_conformance.kit.report.written import write_report  # noqa: PLC0415

        report = self._suite.suite.report
        if report is None:
            return
        terminalreporter.section("flowactions conformance")
        for line in [*profile_lines(report), *closing_lines(report)]:
            terminalreporter.write_line(line)
        if self._folder is not None:
            terminalreporter.write_line(f"Report: {write_report(report, self._folder)}")
