"""The kit's checks as pytest's items.

They are no Python functions that pytest collects, but items of the kit's own, and they run in the kit's thread. So what
a project has set for its own tests (patterns of names, asyncio's mode, warnings as errors) does not change them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from flowactions_conformance.kit.baseline import BaselineInvalid, read_baseline
from flowactions_conformance.kit.hosts.output import encodable
from flowactions_conformance.kit.in_pytest.threaded import KitThread
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, Report, Status
from flowactions_conformance.kit.registry import Check, all_checks
from flowactions_conformance.kit.report.terminal import closing_lines, printable, profile_lines, result_lines
from flowactions_conformance.kit.report.written import write_report

SUITE: Final = Path(__file__).parents[2] / "suite.py"
NODE: Final = "flowactions_conformance/suite.py"
ATTACHED: Final = "flowactions_conformance"


class ConformanceWarning(pytest.PytestWarning):
    """The host does not do what the contract advises, or will require."""


class Unproved(Exception):
    """A check did not pass; the text is all that is known of it."""


def conclude(result: CheckResult, kit: KitThread, warn: Callable[[str], None]) -> None:
    """End a test as its check has ended.

    Args:
        result: of the check.
        kit: that ran it.
        warn: told what the contract only advises.

    Raises:
        Unproved: it failed.
    """
    text = "\n".join(result_lines(result))
    match result.status:
        case Status.NOT_CLAIMED:
            pytest.skip(f"not claimed: the host does not claim {result.profile}, so nothing is proved of it")
        case Status.NOT_TRIED:
            pytest.skip(f"not tried: {result.finding.message if result.finding else ''}")
        case Status.PASS:
            if result.id in kit.baseline:
                raise Unproved(f"{result.id} is in the baseline and passes: remove it there")
        case Status.WARN:
            warn(text)
        case Status.KNOWN:
            pytest.xfail(f"known: {result.known}")
            raise Unproved(text)  # pytest --runxfail
        case _:
            raise Unproved(text)


def warn_through(config: pytest.Config, nodeid: str) -> Callable[[str], None]:
    """Return what puts a warning into pytest's summary, also where warnings are errors."""

    def warn(text: str) -> None:
        said = warnings.WarningMessage(ConformanceWarning(text), ConformanceWarning, nodeid, 0)
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": said, "when": "runtest", "nodeid": nodeid, "location": None}
        )

    return warn


class KitItem(pytest.Item):
    """A check."""

    def __init__(self, *, check: Check, kit: KitThread, **more: Any) -> None:
        super().__init__(**more)
        self.check = check
        self.kit = kit
        self.result: CheckResult | None = None
        self.not_started: str | None = None
        self.extra_keyword_matches |= {check.profile, check.id.rpartition("-")[0]}
        self.user_properties += [("profile", check.profile), ("clause", check.clause)]

    def setup(self) -> None:
        """Start the host, before the first check."""
        if self.kit.has(self.check):
            return
        try:
            self.kit.open()
        except DriverFault as exc:
            self.not_started = printable(str(exc))
        if self.not_started is not None:
            pytest.fail(self.not_started, pytrace=False)

    def runtest(self) -> None:
        """Wait for the check, or run it."""
        alone = hasattr(self.config, "workerinput")  # of xdist, where other processes run the others
        items = [item for item in self.session.items if isinstance(item, KitItem)]
        self.kit.start(item.check for item in items if item is self or not alone)
        self.result = self.kit.result(self.check)
        if not alone:
            self._end_when_all_have(items)
        conclude(self.result, self.kit, warn_through(self.config, self.nodeid))

    def _end_when_all_have(self, items: Sequence[KitItem]) -> None:
        """Wait for the checks of all items, so that the hosts run under no other test."""
        for item in items:
            self.kit.result(item.check)
        self.kit.close()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return what the kit says, without a traceback of the kit."""
        if isinstance(excinfo.value, Unproved):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Names the check."""
        return self.path, None, f"{self.check.id}: {self.check.title}"


class Suite(pytest.File):
    """All checks, whatever a project's patterns are."""

    kit: KitThread

    def collect(self) -> Iterator[KitItem]:
        """Give one item for each check."""
        for check in all_checks():
            yield KitItem.from_parent(self, name=check.name, check=check, kit=self.kit)


class KitPlugin:
    """What is registered when a host is named.

    Args:
        config: pytest's, with the options.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        base = config.invocation_params.dir
        file, folder = config.getoption("flowactions_baseline"), config.getoption("flowactions_report")
        try:
            baseline = read_baseline(base / file) if file else {}
        except BaselineInvalid as exc:
            raise pytest.UsageError(str(exc)) from exc
        unknown = sorted(set(baseline) - {check.id for check in all_checks()})
        if unknown:
            raise pytest.UsageError(f"the baseline names checks that do not exist: {', '.join(unknown)}")
        if not 0 < config.getoption("flowactions_time_scale") < math.inf:
            raise pytest.UsageError("--flowactions-time-scale takes a number above 0")
        self._folder: Path | None = base / folder if folder else None
        self._kit = KitThread(
            config.getoption("flowactions_host"),
            mode="child" if config.getoption("flowactions_child") else "in-process",
            server=config.getoption("flowactions_database"),
            baseline=baseline,
            time_scale=config.getoption("flowactions_time_scale"),
        )
        self._reports: dict[str, Report] = {}
        self._report: Report | None = None

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """Collect the suite."""
        if file_path != SUITE:
            return None
        suite = Suite.from_parent(parent, path=file_path, nodeid=NODE)
        suite.kit = self._kit
        return suite

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Keep the project's filters, inside of which this is, from the host's threads while a check runs."""
        if not isinstance(item, KitItem):
            return (yield)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attaches what came of the check, as text: reports of xdist's processes cross a wire."""
        made = yield
        if isinstance(item, KitItem) and call.when in {"setup", "call"}:
            if item.result is not None:
                made.duration = item.result.seconds  # the first item has waited for all
            error = item.not_started
            if error is not None or call.when == "call":
                results = () if item.result is None else (item.result,)
                report = msgspec.to_builtins(item.kit.report(results, error=error))
                setattr(made, ATTACHED, msgspec.json.encode(encodable(report)).decode())
        return made

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Gathers the results of all processes."""
        attached = getattr(report, ATTACHED, None)
        if attached is not None:
            self._reports[report.nodeid] = msgspec.json.decode(attached, type=Report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Stop the hosts, and write the report."""
        self._kit.close()
        if not self._reports or hasattr(self._config, "workerinput"):
            return
        self._report = _joined(list(self._reports.values()), self._kit.baseline)
        if self._folder is not None:
            write_report(self._report, self._folder)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says what is proved, and of which profiles nothing is."""
        if self._report is None:
            return
        terminalreporter.section("flowactions conformance")
        for line in [*profile_lines(self._report), *closing_lines(self._report)]:
            terminalreporter.write_line(line)
        if self._folder is not None:
            terminalreporter.write_line(f"Report: {self._folder / 'report.html'}")


def _joined(reports: Sequence[Report], baseline: dict[str, str]) -> Report:
    found = {result.id: result for report in reports for result in report.results}
    checks = all_checks()
    results = tuple(found[check.id] for check in checks if check.id in found)
    stale = tuple(sorted(id_ for id_ in baseline if id_ in found and found[id_].status is Status.PASS))
    return msgspec.structs.replace(
        reports[-1],
        claims=next((report.claims for report in reports if report.claims), ()),
        seconds=max(report.seconds for report in reports),
        results=results,
        error=next((report.error for report in reports if report.error is not None), None),
        stale_baseline=stale,
        output=max((report.output for report in reports), key=len),
        selected=len(results) < len(checks),
    )
