"""Runs checks in a thread and an event loop of the kit's own, for whoever waits for results without one."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import Iterable
from concurrent import futures
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Final

import msgspec

from flowactions_conformance.kit.baseline import Baseline
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, Finding, NothingKnown, Report
from flowactions_conformance.kit.registry import Check
from flowactions_conformance.kit.runner import Runner, opened, report_of
from flowactions_conformance.kit.session import Mode, Session
from flowactions_conformance.kit.under_test import Factory

CLOSE_SECONDS: Final = 60.0


_open: list[KitThread] = []
"""The one that is open in this process: its probe plugin is on the path, where that of another must not be."""


class KitThread:
    """One open session, in a thread. Opening one closes another; it is opened again when it has more to run.

    Args:
        factory: the function, or its name.
        mode: how hosts run.
        server: the URL of a PostgreSQL; ``None``: SQLite.
        baseline: check id → why its failure is accepted.
        strict: whether a should counts as a must.
        time_scale: of all limits.

    Attributes:
        told_by: the check whose test has said why the host did not start.
    """

    def __init__(
        self,
        factory: Factory | str,
        *,
        mode: Mode = "in-process",
        server: str | None = None,
        baseline: Baseline | None = None,
        strict: bool = False,
        time_scale: float = 1.0,
    ) -> None:
        self._time_scale = time_scale
        self.baseline: Baseline = baseline or {}
        self._strict = strict
        self.told_by: str | None = None
        self._factory = factory
        self._mode: Mode = mode
        self._server = server
        self._session = Session(factory, mode=mode, server=server)
        self._started_at, self._began = datetime.now(UTC), time.monotonic()
        self._thread: threading.Thread | None = None
        self._opened: Future[Runner] = Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._results: dict[str, Future[CheckResult]] = {}

    def open(self) -> None:
        """Start the host, unless it was started before.

        Raises:
            DriverFault: the driver does not do its part; the same again at each call.
        """
        while _open and _open[-1] is not self:
            _open[-1].close()
        if self._thread is None:
            _open.append(self)
            self._thread = threading.Thread(target=self._main, name="flowactions-conformance", daemon=True)
            self._thread.start()
        self._opened.result()

    def start(self, checks: Iterable[Check]) -> None:
        """Has these checks run, side by side, unless they were started before."""
        todo = [check for check in checks if check.id not in self._results]
        if todo:
            self.open()
            runner, loop = self._opened.result(), self._loop
            assert loop is not None  # noqa: S101  there since it was opened
            for check in todo:
                self._results[check.id] = asyncio.run_coroutine_threadsafe(runner.run(check), loop)

    def has(self, check: Check) -> bool:
        """Return whether a check was started: then nothing need be opened for it."""
        return check.id in self._results

    def result(self, check: Check) -> CheckResult:
        """Wait for what came of a check that was started."""
        return self._results[check.id].result()

    def close(self) -> None:
        """Wait for the checks that were started, and stop the hosts. The results stay."""
        if self._thread is None:
            return
        # pytest applies a project's filters here, too; hosts that stop must not meet warnings as errors.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            futures.wait(self._results.values())
            if self._loop is not None and self._closing is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(CLOSE_SECONDS)
        if self in _open:
            _open.remove(self)
        if self._opened.done() and self._opened.exception() is None:
            self._thread, self._opened = None, Future()

    def report(self, results: Iterable[CheckResult] = (), *, error: str | None = None) -> Report:
        """Return a report with these results."""
        finding = None if error is None else Finding(message=error)
        report = report_of(self._session, self._started_at, self._began, results, finding)
        return msgspec.structs.replace(report, strict=self._strict)

    def _main(self) -> None:
        # Not by the policy of the process: a foreign test suite may have set one.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._live())

    async def _live(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        try:
            # A new one each time that it is opened: a session is not opened twice.
            session = Session(self._factory, mode=self._mode, server=self._server, time_scale=self._time_scale)
            async with opened(session, self.baseline, strict=self._strict) as runner:
                self._session = session
                self._opened.set_result(runner)
                await self._closing.wait()
        except DriverFault as exc:
            self._fail(exc)
        except NothingKnown as exc:
            self._fail(DriverFault(str(exc)))
        except BaseException as exc:  # noqa: BLE001  whoever waits must hear of it
            self._fail(DriverFault(f"the kit failed: {type(exc).__name__}: {exc}"))

    def _fail(self, fault: DriverFault) -> None:
        if not self._opened.done():
            self._opened.set_exception(fault)
