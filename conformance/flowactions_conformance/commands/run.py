"""``run``: runs the checks over a host, and reports the result."""

from __future__ import annotations

import argparse
import asyncio
import io
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import closing, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast
from urllib.parse import urlsplit

from flowactions_conformance.commands.left_behind import adopt_orphans, descendants, end_left_behind
from flowactions_conformance.kit.baseline import Baseline, BaselineInvalid, read_baseline
from flowactions_conformance.kit.hand_over import address_in, read_environment
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import INTERRUPTED, CheckResult, DriverFault, Report, Status
from flowactions_conformance.kit.registry import Check, all_checks, select
from flowactions_conformance.kit.report.summary import ATTENTION
from flowactions_conformance.kit.report.terminal import Paint, printable, report_text
from flowactions_conformance.kit.report.written import write_report
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.kit.session import ServedAt

if TYPE_CHECKING:
    from collections.abc import Iterator

WRONG: Final = 2
AWAY: Final = "Asia/Kathmandu"


class Wrong(Exception):
    """The command line, or a file that it names, is wrong; the message says what to do."""


def run(options: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0: every check of what the host claims has passed, or is known to fail. 1: some failed, or none ran. 2: the
        driver, the kit or the command line is wrong. 124: the time-out has passed. 130: it was interrupted.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    try:
        checks = select(options.check) if options.check else all_checks()
        if options.list:
            _list(checks)
            return 0
        return _report(options, checks, out)
    except (Wrong, BaselineInvalid, LookupError) as exc:
        sys.stderr.write(f"flowactions_conformance: {printable(str(exc.args[0]))}\n")
        return WRONG


def _list(checks: Sequence[Check]) -> None:
    for check in checks:
        since = f"since {check.since}" if check.since else "provisional"
        sys.stdout.write(f"{check.id:<14}{check.profile:<12}{check.level:<8}{since:<13}{check.title}\n")


def _report(options: argparse.Namespace, checks: Sequence[Check], out: TextIO) -> int:
    served = _served(options)
    if options.host is None and served is None:
        raise Wrong("name the factory that makes your host: run package.module:make_host; init writes one")
    check_database(options.database)
    if not 0 < options.time_scale < math.inf:
        raise Wrong("--time-scale takes a number above 0, for example 2: all limits are twice as long")
    if options.timeout is not None and not 0 < options.timeout < math.inf:
        raise Wrong("--timeout takes a number of seconds above 0")
    baseline = {} if options.baseline is None else read_baseline(options.baseline)
    paint = Paint(colours=out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")
    progress = Progress(len(checks), sys.stderr)
    # What the driver of a served host has started is that host.
    with _away_from_utc(), _nothing_left_behind(progress) if served is None else closing(progress):
        report = _watched(options, served, baseline, progress)
    out.write(report_text(report, paint))
    if options.report is not None:
        try:
            out.write(f"Report: {write_report(report, options.report)}\n")
        except OSError as exc:
            raise Wrong(f"the report cannot be written to {options.report}: {exc.strerror}") from exc
    return report.exit_status


@contextmanager
def _away_from_utc() -> Iterator[None]:
    """Be in another time zone, unless one was chosen: in UTC, a local time that is taken for UTC would be right."""
    is_known = Path("/usr/share/zoneinfo", AWAY).exists()
    if not is_known or "TZ" in os.environ or time.localtime().tm_gmtoff:
        yield
        return
    os.environ["TZ"] = AWAY
    time.tzset()
    try:
        yield
    finally:
        del os.environ["TZ"]
        time.tzset()


@contextmanager
def _nothing_left_behind(progress: Progress) -> Iterator[None]:
    adopt_orphans()
    before = descendants()
    try:
        yield
    finally:
        progress.close()
        for pid, command in end_left_behind(before).items():
            sys.stderr.write(f"The host left a process behind, which was ended: {pid} {printable(command)}\n")


class Progress:
    """How far a run is: one line on a terminal, nothing elsewhere.

    Args:
        count: of checks.
        stream: where to write.
    """

    def __init__(self, count: int, stream: TextIO) -> None:
        self.results: list[CheckResult] = []
        self._count = count
        self._began = time.monotonic()
        self._stream = stream if stream.isatty() else None
        self._show("starting the host")

    def add(self, result: CheckResult) -> None:
        """Record a result."""
        self.results.append(result)
        failed = sum(each.status in ATTENTION and each.status is not Status.KNOWN for each in self.results)
        ended = len(self.results)
        left = (time.monotonic() - self._began) / ended * (self._count - ended)
        about = f"{left:.0f} seconds" if left < 90 else f"{left / 60:.0f} minutes"
        self._show(f"{ended} of {self._count} checks, {failed} to look at, about {about} left")

    def close(self) -> None:
        """Remove the line."""
        self._show("")

    def _show(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()


def _served(options: argparse.Namespace) -> ServedAt | None:
    """Read where a host is that somebody else has started; ``None``: the kit starts one."""
    if options.url is None:
        for option in ("driver", "env"):
            if getattr(options, option) is not None:
                raise Wrong(f"--{option} is for a host that is already served: add --url")
        return None
    if options.driver is None:
        raise Wrong(
            "--url needs --driver package.module:make_driver, by which the kit uses the host at that address"
        )
    if options.host is not None:
        raise Wrong("--url is for a host that is already served: name its driver by --driver, and no factory")
    for option in ("child", "database"):
        if getattr(options, option):
            raise Wrong(
                f"--{option} is for hosts that the kit starts, and not for one at --url: serve-env has --database"
            )
    url = read_url(options.url)
    try:
        environ = os.environ if options.env is None else read_environment(options.env)
        return ServedAt(url, address_in(environ), options.env)
    except DriverFault as exc:
        raise Wrong(str(exc)) from exc


def check_database(url: str | None) -> None:
    """See that a URL is one of a PostgreSQL.

    Raises:
        Wrong: it is another one.
    """
    if url and not url.startswith(("postgresql://", "postgres://")):
        raise Wrong("--database takes the URL of a PostgreSQL, postgresql://…; without it, SQLite is used")


def read_url(text: str) -> str:
    """Return the URL at which a host is reached, without a slash at its end.

    Raises:
        Wrong: it is none.
    """
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or parts.username is not None:
        raise Wrong("--url takes the URL at which the host is reached, for example http://127.0.0.1:8080/app")
    return text.rstrip("/")


def _watched(
    options: argparse.Namespace, served: ServedAt | None, baseline: Baseline, progress: Progress
) -> Report:
    """Run the checks while hosts print into a bounded buffer."""
    output = Output()

    async def checking() -> Report:
        return await run_checks(
            options.host if served is None else options.driver,
            options.check,
            mode="child" if options.child else "in-process",
            server=options.database,
            baseline=baseline,
            output=output,
            time_scale=options.time_scale,
            strict=options.strict,
            within=options.timeout,
            served=served,
            seed=options.seed,
            on_result=progress.add,
        )

    async def interruptible() -> Report:
        task = asyncio.create_task(checking())
        with _signals(task):
            return await task

    stream = cast("TextIO", output)
    with redirect_stdout(stream), redirect_stderr(stream):
        return asyncio.run(interruptible())


@contextmanager
def _signals(task: asyncio.Task[Report]) -> Iterator[None]:
    """Stop the hosts and end the run at the first Ctrl+C, and end the process at the second."""
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        if task.cancelling():
            with suppress(OSError):
                end_left_behind({})
            os._exit(INTERRUPTED["signal"])
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupted)
    try:
        yield
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
