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
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast
from urllib.parse import urlsplit

from flowactions_conformance.commands import Wrong
from flowactions_conformance.kit.hand_over import read_environment
from flowactions_conformance.kit.hosts.limits import SLOW
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, Report
from flowactions_conformance.kit.registry import all_checks, select
from flowactions_conformance.kit.report.summary import ATTENTION
from flowactions_conformance.kit.report.terminal import Paint, coloured, plain, report_text
from flowactions_conformance.kit.report.written import write_report
from flowactions_conformance.kit.runner import run_checks

if TYPE_CHECKING:
    from collections.abc import Iterator

AWAY: Final = "Asia/Kathmandu"
LINE_SECONDS: Final = 10.0
"""Between two lines about the progress, where there is no terminal."""


def run(options: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0: every check of what the host claims has passed. 1: some failed, or none ran. 2: the
        driver or the kit is wrong. 130: it was interrupted.

    Raises:
        Wrong: the command line, or a file that it names, is wrong.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    try:
        checks = select(options.check) if options.check else all_checks()
        if options.list:
            for check in checks:
                since = f"since {check.since}" if check.since else "provisional"
                out.write(f"{check.id:<14}{check.profile:<12}{since:<13}{check.title}\n")
            return 0
        report = _report(options, Progress(len(checks), sys.stderr))
    except (LookupError, DriverFault) as exc:
        raise Wrong(str(exc.args[0])) from exc
    out.write(report_text(report, paint_for(out)))
    if options.report is not None:
        try:
            out.write(f"Report: {write_report(report, options.report)}\n")
        except OSError as exc:
            raise Wrong(f"the report cannot be written to {options.report}: {exc.strerror}") from exc
    return report.exit_status


def paint_for(out: TextIO) -> Paint:
    """Return colours for a terminal, and none for a file or a pipe."""
    has_them = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return coloured if has_them else plain


def _report(options: argparse.Namespace, progress: Progress) -> Report:
    """Run the checks while hosts print into a bounded buffer."""
    if (options.env is None) != (options.driver is None):
        raise Wrong(
            "--env and --driver belong together: what serve-env has written, and what makes the host's driver"
        )
    if (options.host is None) == (options.driver is None):
        raise Wrong(
            "name the factory that makes your host: run package.module:make_host; init writes one. For a host that is already"
            " served, name --env and --driver instead"
        )
    if options.env is not None and options.database:
        raise Wrong("--database is for hosts that the kit starts: serve-env has one, too")
    check_database(options.database)
    if not 0 < options.time_scale < math.inf:
        raise Wrong("--time-scale takes a number above 0, for example 2: all limits are twice as long")
    served = None if options.env is None else read_environment(options.env)
    output = Output()

    async def interruptible() -> Report:
        """Stop the hosts and end the run at the first Ctrl+C, and end the process at the second."""
        task = asyncio.create_task(
            run_checks(
                options.driver or options.host,
                options.check,
                server=options.database,
                output=output,
                time_scale=options.time_scale,
                served=served,
                seed=options.seed,
                on_result=progress.add,
            )
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(
                number, lambda: os._exit(130) if task.cancelling() else task.cancel()
            )
        return await task

    stream = cast("TextIO", output)
    try:
        with _away_from_utc(), redirect_stdout(stream), redirect_stderr(stream):
            return asyncio.run(interruptible())
    finally:
        progress.close()


@contextmanager
def _away_from_utc() -> Iterator[None]:
    """Be in another time zone, unless one was chosen: in UTC, a local time that is taken for UTC would be right."""
    is_utc = "TZ" not in os.environ and not time.localtime().tm_gmtoff
    if is_utc and Path("/usr/share/zoneinfo", AWAY).exists():
        os.environ["TZ"] = AWAY
        time.tzset()
    try:
        yield
    finally:
        if is_utc:
            os.environ.pop("TZ", None)
            time.tzset()


class Progress:
    """How far a run is: one line that moves on a terminal, and a line each ten seconds elsewhere.

    Args:
        count: of checks.
        stream: where to write.
    """

    def __init__(self, count: int, stream: TextIO) -> None:
        self._count, self._stream = count, stream
        self._began = self._said_at = time.monotonic()
        self._ended = self._failed = 0
        self._show("starting the host")

    def add(self, result: CheckResult, slowness: float, running: int) -> None:
        """Record a result, how many times slower than needed the machine was, and how many checks run."""
        self._ended += 1
        self._failed += result.status in ATTENTION
        left = (time.monotonic() - self._began) / self._ended * (self._count - self._ended)
        about = f"{left:.0f} seconds" if left < 90 else f"{left / 60:.0f} minutes"
        slow = f", this machine is {slowness:.0f} times slower than needed" if slowness >= SLOW else ""
        self._show(
            f"{self._ended} of {self._count} checks, {running} run, {self._failed} to look at{slow}, about {about} left"
        )

    def close(self) -> None:
        """Remove the line."""
        if self._stream.isatty():
            self._show("")

    def _show(self, text: str) -> None:
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{text}")
        elif time.monotonic() > self._said_at + LINE_SECONDS:
            self._said_at = time.monotonic()
            self._stream.write(f"{text}\n")
        self._stream.flush()


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
