"""The checks as tests of pytest: all selected checks run together, once, and each test reports the result of its check."""

from __future__ import annotations

import asyncio
import fcntl
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from hashlib import sha256
from pathlib import Path
from threading import Thread
from typing import Any, Final

import msgspec
import pytest

from flowactions_conformance.kit.hosts.output import encodable
from flowactions_conformance.kit.outcomes import CheckResult, Report, Status
from flowactions_conformance.kit.registry import Check, all_checks, select
from flowactions_conformance.kit.report.terminal import printable, result_lines
from flowactions_conformance.kit.report.written import write_report
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.kit.under_test import Factory

CLOSE_SECONDS: Final = 60.0


class ConformanceWarning(pytest.PytestWarning):
    """The host does not do what the contract will require."""


def _in_one_process(path: Path, run: Callable[[], Report]) -> Report:
    """Have one of xdist's processes run the checks, and the others wait for its report."""
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        written = file.read()
        if written:
            return msgspec.json.decode(written, type=Report)
        report = run()
        file.write(msgspec.json.encode(encodable(msgspec.to_builtins(report))))
        return report


def _in_thread(run: Callable[[], Coroutine[Any, Any, Report]]) -> Report:
    """Run the checks in an event loop and a thread of the kit's own, whatever the project has set for its tests."""
    loops: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Report]]] = Future()
    ended: Future[Report] = Future()

    async def running() -> Report:
        task = asyncio.create_task(run())
        loops.set_result((asyncio.get_running_loop(), task))
        return await task

    def main() -> None:
        try:
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                ended.set_result(runner.run(running()))
        except BaseException as exc:  # noqa: BLE001  whoever waits must hear of it
            ended.set_exception(exc)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a project's filters must not reach the host's threads
        Thread(target=main, name="flowactions-conformance", daemon=True).start()
        try:
            return ended.result()
        except KeyboardInterrupt:
            loop, task = loops.result()
            loop.call_soon_threadsafe(task.cancel)
            ended.result(CLOSE_SECONDS)
            raise


def conformance_suite(
    make_host: Factory | str,
    *,
    checks: Iterable[str] = (),
    database: str | None = None,
    seed: int | None = None,
    report: Path | None = None,
    time_scale: float = 1.0,
) -> type:
    """Make a class with one test for each check.

    Args:
        make_host: the factory, or its name as ``package.module:make_host``.
        checks: ids, groups or profiles; none: all.
        database: the URL of a PostgreSQL whose user may create databases; ``None``: SQLite.
        seed: of the values that are drawn; ``None``: another one in each run.
        report: the folder into which ``report.json`` is written.
        time_scale: makes all limits longer or shorter.

    Raises:
        LookupError: there is no check of a name.
    """
    chosen = list(checks)
    known: Sequence[Check] = select(chosen) if chosen else all_checks()

    async def run(ids: Iterable[str]) -> Report:
        wanted = set(ids)
        some = () if wanted == {check.id for check in all_checks()} else wanted
        ended = await run_checks(make_host, some, server=database, seed=seed, time_scale=time_scale)
        if report is not None:
            write_report(ended, report)
        return ended

    reports: list[Report] = []
    told_by: list[str] = []

    class Conformance:
        """The checks of the flowactions conformance kit."""

        __test__ = True  # whatever a project's patterns are

        @pytest.fixture
        def report(self, request: pytest.FixtureRequest, check: Check) -> Report:
            """Return the report. The first test runs the checks of all tests that are selected, and says why none could be."""
            if not reports:
                items = (item for item in request.session.items if isinstance(item, pytest.Function))
                checks: Any = [item.callspec.params["check"] for item in items if item.cls is request.cls]
                ids = [each.id for each in checks]
                running = partial(_in_thread, partial(run, ids))
                if hasattr(request.config, "workerinput"):
                    digest = sha256(f"{make_host} {database} {ids}".encode()).hexdigest()
                    folder = request.getfixturevalue("tmp_path_factory").getbasetemp().parent
                    running = partial(_in_one_process, folder / f"flowactions-{digest[:16]}.json", running)
                reports.append(running())
            if (error := reports[0].error) is not None:
                told_by.append(check.id)
                is_first = told_by[0] == check.id
                said = printable(error.message) if is_first else f"the host did not start, as {told_by[0]} says"
                pytest.fail(said, pytrace=False)
            return reports[0]

        @pytest.mark.parametrize("check", known, ids=lambda check: check.name)
        def test(self, check: Check, report: Report, request: pytest.FixtureRequest) -> None:
            """Report the result of the check."""
            result = next(each for each in report.results if each.id == check.id)
            request.node.user_properties += [("profile", check.profile), ("clause", check.clause)]
            node = request.node
            show = partial(node.add_report_section, "call", "by the kit")
            conclude(result, warn_through(request.config, node.nodeid), show)

        test.__test__ = True  # type: ignore[attr-defined]

    return Conformance


conformance_suite.__test__ = False  # type: ignore[attr-defined]  # whatever a project's patterns are


def conclude(result: CheckResult, warn: Callable[[str], None], show: Callable[[str], None]) -> None:
    """End a test as its check has ended.

    Args:
        result: of the check.
        warn: told what a later contract will require.
        show: shows all that is known of a failure, once: pytest's summary repeats what the test raises.
    """
    text = "\n".join(result_lines(result))
    said = "" if result.finding is None else printable(result.finding.message)
    match result.status:
        case Status.NOT_CLAIMED:
            pytest.skip(f"not claimed: the host does not claim {result.profile}, so nothing is proved of it")
        case Status.NOT_TRIED:
            pytest.skip(f"not tried: {said}")
        case Status.PASS:
            return
        case Status.WARN:
            warn(text)
            return
    show(text)
    word, first = result.status.name.replace("_", " "), said.partition("\n")[0]
    pytest.fail(f"{word} {result.id}: {first}", pytrace=False)


def warn_through(config: pytest.Config, nodeid: str) -> Callable[[str], None]:
    """Return what puts a warning into pytest's summary, also where warnings are errors."""

    def warn(text: str) -> None:
        said = warnings.WarningMessage(ConformanceWarning(text), ConformanceWarning, nodeid, 0)
        config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": said, "when": "runtest", "nodeid": nodeid, "location": None}
        )

    return warn
