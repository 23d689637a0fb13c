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
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback

from flowactions_conformance.kit.baseline import (
    Baseline,
    BaselineInvalid,
    read_baseline,
    refuse_unknown,
    stale_in,
)
from flowactions_conformance.kit.hosts.output import encodable
from flowactions_conformance.kit.in_pytest.threaded import KitThread
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, Report, Status
from flowactions_conformance.kit.registry import Check, all_checks
from flowactions_conformance.kit.report.terminal import closing_lines, printable, profile_lines, result_lines
from flowactions_conformance.kit.report.written import write_report

SUITE: Final = Path(__file__).parents[2] / "suite.py"
NODE: Final = "flowactions_conformance/suite.py"
ATTACHED: Final = "flowactions_conformance"
TOLD: Final = "flowactions-conformance-told"


class ConformanceWarning(pytest.PytestWarning):
    """The host does not do what the contract advises, or will require."""


class Unproved(Exception):
    """A check did not pass.

    Args:
        short: what is wrong, in a line.
        text: all that is known of it.
    """

    def __init__(self, short: str, text: str) -> None:
        super().__init__(text)
        self.short = short
        self.text = text


class Told:
    """Has pytest print what came of a check once, without a traceback of the kit: whole, and in the summary one line."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Replace what is shown of an `Unproved`, in a form that crosses the wire of xdist, too."""
        made = yield
        unproved = None if call.excinfo is None else call.excinfo.value
        if isinstance(unproved, Unproved):
            whole = ReprTraceback([ReprEntryNative([f"{unproved.text}\n"])], None, "native")
            made.longrepr = ExceptionChainRepr(
                [(whole, ReprFileLocation(str(item.path), 1, unproved.short), None)]
            )
        return made


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
    said = "" if result.finding is None else printable(result.finding.message).partition("\n")[0]
    unproved = Unproved(f"{result.status.name.replace('_', ' ')} {result.id}: {said}", text)
    match result.status:
        case Status.NOT_CLAIMED:
            pytest.skip(f"not claimed: the host does not claim {result.profile}, so nothing is proved of it")
        case Status.NOT_TRIED:
            pytest.skip(f"not tried: {result.finding.message if result.finding else ''}")
        case Status.PASS:
            entry = kit.baseline.get(result.id)
            if entry is not None and entry.is_stale(kit.report((result,)), result.id):
                stale = f"{result.id} is in the baseline and passes: remove it there"
                raise Unproved(stale, stale)
        case Status.WARN:
            warn(text)
        case Status.KNOWN:
            pytest.xfail(f"known: {result.known}")
            raise unproved  # pytest --runxfail
        case _:
            raise unproved


def not_started(kit: KitThread, check: Check, text: str) -> Unproved:
    """Return what a test says whose host did not start: the first one all of it, each after it where to read it."""
    short = text.partition("\n")[0]
    if kit.told_by in {None, check.id}:
        kit.told_by = check.id
        return Unproved(short, text)
    return Unproved(short, f"the host did not start, as {kit.told_by} says")


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
            raise not_started(self.kit, self.check, self.not_started) from None

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

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the name of the check."""
        return self.path, None, f"{self.check.id}: {self.check.title}"


class Suite(pytest.File):
    """All checks, whatever a project's patterns are."""

    kit: KitThread

    def collect(self) -> Iterator[KitItem]:
        """Return one item for each check."""
        for check in all_checks():
            yield KitItem.from_parent(self, name=check.name, check=check, kit=self.kit)


class KitPlugin:
    """What is registered when a host is named.

    Args:
        config: pytest's, with the options.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        config.pluginmanager.register(Told(), TOLD)
        base = config.invocation_params.dir
        file, folder = config.getoption("flowactions_baseline"), config.getoption("flowactions_report")
        try:
            baseline = read_baseline(base / file) if file else {}
            refuse_unknown(baseline)
        except (BaselineInvalid, LookupError) as exc:
            raise pytest.UsageError(str(exc)) from exc
        if not 0 < config.getoption("flowactions_time_scale") < math.inf:
            raise pytest.UsageError("--flowactions-time-scale takes a number above 0")
        self._folder: Path | None = base / folder if folder else None
        self._kit = KitThread(
            config.getoption("flowactions_host"),
            mode="child" if config.getoption("flowactions_child") else "in-process",
            server=config.getoption("flowactions_database"),
            baseline=baseline,
            strict=config.getoption("flowactions_strict"),
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
        """Collect the results of all processes."""
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
        """Print which profiles are proved, and which are not."""
        if self._report is None:
            return
        terminalreporter.section("flowactions conformance")
        for line in [*profile_lines(self._report), *closing_lines(self._report)]:
            terminalreporter.write_line(line)
        if self._folder is not None:
            terminalreporter.write_line(f"Report: {self._folder / 'report.html'}")


def _joined(reports: Sequence[Report], baseline: Baseline) -> Report:
    found = {result.id: result for report in reports for result in report.results}
    checks = all_checks()
    results = tuple(found[check.id] for check in checks if check.id in found)
    joined = msgspec.structs.replace(
        reports[-1],
        claims=next((report.claims for report in reports if report.claims), ()),
        seconds=max(report.seconds for report in reports),
        results=results,
        error=next((report.error for report in reports if report.error is not None), None),
        output=max((report.output for report in reports), key=len),
        selected=len(results) < len(checks),
        checks=len(results),
    )
    return msgspec.structs.replace(joined, stale_baseline=stale_in(baseline, joined))
