"""Runs checks over one host and returns the result of each: the one way that all commands and test suites use."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from typing import Final

import msgspec

from flowactions_conformance.kit.hand_over import ServedAt
from flowactions_conformance.kit.hosts.limits import SLOW, Late
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import (
    CheckFailed,
    CheckResult,
    CommonCause,
    DriverFault,
    Finding,
    NothingKnown,
    NotTestable,
    NotTried,
    Report,
    Status,
)
from flowactions_conformance.kit.preflight import preflight
from flowactions_conformance.kit.registry import Check, all_checks, select
from flowactions_conformance.kit.session import Host, Session
from flowactions_conformance.kit.tested import DISTRIBUTION
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Factory
from flowactions_hookspecs import CONTRACT_VERSION
from flowactions_hookspecs.tasks import is_being_cancelled

CONTRACT: Final = ".".join(map(str, CONTRACT_VERSION))
AT_ONCE: Final = 8
"""Checks on the shared host that run side by side: each has an organization and ids of its own."""
ALONE_AT_ONCE: Final = 2
"""Checks that start hosts of their own."""
FAILURES: Final = frozenset({Status.FAIL, Status.WARN, Status.NOT_TESTABLE})


class Runner:
    """Runs checks in an open session.

    Args:
        session: open.
        host: the shared host, which has passed the preflight.
        keep: called with each result as it comes.

    Attributes:
        running: the ids of the checks that run now, or ran when they were cancelled.
    """

    def __init__(self, session: Session, host: Host, keep: Callable[[CheckResult], None]) -> None:
        self.session = session
        self.host = host
        self.running: set[str] = set()
        self._keep = keep
        self._shared, self._alone = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(ALONE_AT_ONCE)

    async def run(self, checks: Iterable[Check]) -> None:
        """Run several checks at the same time. Each ends with a result, whatever happens.

        One that ends with an error, or fails on a slow machine, is tried again when all others have run, alone; likewise one
        that fails while the database or the host did not answer the plugin in time. If both are so, nothing is known in the end.
        A wrong value of a walk is a failure at once: no slow machine makes one.
        """
        doubtful: list[Check] = []

        async def first(check: Check) -> None:
            async with self._alone if check.alone else self._shared:
                result, is_doubtful = await self._run(check, is_second=False)
            if is_doubtful:
                doubtful.append(check)
            else:
                self._keep(result)

        async with asyncio.TaskGroup() as group:
            for check in checks:
                group.create_task(first(check))
        for check in doubtful:
            await self.session.until_released()
            result, is_doubtful = await self._run(check, is_second=True)
            if is_doubtful and result.finding is not None and result.status is not Status.ERROR:
                said = f"not known: this machine was too slow, as it was before. What was seen: {result.finding.message}"
                finding = msgspec.structs.replace(result.finding, message=said)
                result = msgspec.structs.replace(result, status=Status.ERROR, finding=finding)
            self._keep(result)

    async def _run(self, check: Check, *, is_second: bool) -> tuple[CheckResult, bool]:
        """Run one check once; return its result, and whether a second try may tell more."""
        self.running.add(check.id)
        judged = await self._tried(check, is_second=is_second)
        self.running.remove(check.id)  # not if it was cancelled: the report names those
        return judged

    async def _tried(self, check: Check, *, is_second: bool) -> tuple[CheckResult, bool]:
        began, result = time.monotonic(), partial(check.result, rerun=self._rerun(check))
        if check.profile not in self.session.claims or self.session.lacks.intersection(check.needs):
            return result(Status.NOT_CLAIMED), False
        if lacking := self._lacking(check):
            return result(Status.NOT_TRIED, finding=Finding(message=lacking)), False
        trial = Trial(self.session, check, None if check.alone else self.host)
        try:
            status, finding = await _judge(check, trial)
        finally:
            trial.end()
        if finding is not None:
            finding = msgspec.structs.replace(finding, logged=trial.logged())
        is_slow = self.session.machine.slowness() >= SLOW
        is_late = (trial.saw_overload and is_slow) if is_second else (trial.saw_overload or is_slow)
        excused = is_late and not trial.saw_wrong_value
        is_doubtful = status is Status.ERROR or (status in FAILURES and excused)
        ended = result(
            status,
            finding=finding,
            timeline=tuple(trial.timeline),
            seconds=time.monotonic() - began,
        )
        return ended, is_doubtful

    def _rerun(self, check: Check) -> str:
        session, command = self.session, "python -m flowactions_conformance run"
        factory = shlex.quote(session.factory_name)
        if session.served is not None:
            factory = f"--env {shlex.quote(str(session.served.file))} --driver {factory}"
        elif session.databases.kind == "postgresql":
            factory += " --database postgresql://…"
        return f"{command} {factory} --check {check.id} --seed {session.seed}"

    def _lacking(self, check: Check) -> str:
        """Return what a check needs, and a served host cannot give; empty, if nothing is lacking."""
        if self.session.served is None or check.served == "shared":
            return ""
        if check.served == "no":
            return "it needs a host or a process that the kit itself starts"
        return "" if check.served in self.host.running.about.restarts else f"the driver has no {check.served}()"

    def runs_last(self, check: Check) -> bool:
        """Return whether a check runs when all others have ended, and alone: of a served host, it may harm them."""
        return self.session.served is not None and (check.alone or check.served != "shared")


async def _judge(check: Check, trial: Trial) -> tuple[Status, Finding | None]:
    try:
        await trial.session.patience.wait(check.run(trial), "check")
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        message = "the kit failed in this check: what it waited for was cancelled"
        return Status.ERROR, Finding(message=message, actual="CancelledError")
    except Exception as exc:  # noqa: BLE001  a defect of the kit is said as one
        if isinstance(exc, CommonCause):
            first = trial.session.causes.setdefault(str(exc), check.id)
            if first != check.id:
                return Status.NOT_TRIED, Finding(message=f"not tried, because of what {first} says: {exc}")
        return judged(check, exc)
    return Status.PASS, None


def judged(check: Check, exc: Exception) -> tuple[Status, Finding]:
    """Return what a check says that has raised: a provisional one only warns."""
    failed, text = Status.FAIL if check.since else Status.WARN, str(exc)
    match exc:
        case CheckFailed():
            return failed, exc.finding
        case NotTestable():
            untested = Status.NOT_TESTABLE if check.since else Status.WARN
            return untested, Finding(message=text, causes=check.causes)
        case DriverFault():
            # The preflight has shown that the driver works: what it cannot do now is the host's doing.
            return failed, Finding(message=text, expected=check.title, actual=text, causes=check.causes)
        case NothingKnown() | NotTried():
            return Status.NOT_TRIED if isinstance(exc, NotTried) else Status.ERROR, Finding(message=text)
        case Late():
            text = f"the check did not end within {exc.seconds:g} seconds; its timeline shows how far it came"
            return failed, Finding(message=text, causes=check.causes)
    text = f"{type(exc).__name__}: {exc}"
    return Status.ERROR, Finding(message=f"the kit failed in this check: {text}", actual=text)


async def run_checks(
    factory: Factory | str,
    ids: Iterable[str] = (),
    *,
    server: str | None = None,
    output: Output | None = None,
    time_scale: float = 1.0,
    served: ServedAt | None = None,
    seed: int | None = None,
    on_result: Callable[[CheckResult, float, int], None] = lambda *_: None,
) -> Report:
    """Run checks over one host. Cancelled, it returns the report of the checks that have ended.

    Args:
        factory: the function, or its name as ``package.module:attribute``.
        ids: of checks, groups or profiles; none: all.
        server: the URL of a PostgreSQL whose user may create databases; ``None``: SQLite.
        output: what hosts print; for who has replaced ``sys.stdout`` by it.
        time_scale: of all limits.
        served: a host that somebody else has started; then the factory makes its driver.
        seed: of the values that checks draw; ``None``: another one in each run.
        on_result: called with each result as it comes, how many times slower than needed the machine was, and how many checks run.

    Raises:
        LookupError: there is no check of a name in ``ids``.
    """
    chosen = list(ids)
    checks: Sequence[Check] = select(chosen) if chosen else all_checks()
    started, began = datetime.now(UTC), time.monotonic()
    session = Session(factory, server=server, output=output, time_scale=time_scale, served=served, seed=seed)
    results: dict[str, CheckResult] = {}
    error: Finding | None = None
    interrupted = False
    runner: Runner | None = None

    def keep(result: CheckResult) -> None:
        results[result.id] = result
        on_result(result, session.machine.slowness(), 0 if runner is None else len(runner.running))

    try:
        async with session.running():
            sends_events = any(check.sends_events for check in checks)
            runner = Runner(session, await preflight(session, sends_events=sends_events), keep)
            await runner.run(check for check in checks if not runner.runs_last(check))
            for check in filter(runner.runs_last, checks):
                await runner.run([check])
    except (DriverFault, NothingKnown) as exc:
        error = Finding(message=str(exc))
        session.claims = frozenset()  # none of them was tried
    except asyncio.CancelledError:
        interrupted = True  # who has cancelled this wants to know what was found so far
    return Report(
        host=session.factory_name,
        contract=CONTRACT,
        kit=metadata.version(DISTRIBUTION),
        seed=session.seed,
        mode=session.mode,
        database=session.databases.kind,
        started_at=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        claims=tuple(sorted(session.claims)),
        results=tuple(results[check.id] for check in checks if check.id in results),
        error=error,
        output=session.output.text(),
        selected=bool(chosen),
        tested=session.tested(),
        lacks=tuple(sorted(session.lacks)),
        checks=len(checks),
        interrupted=interrupted,
        running=tuple(sorted(runner.running)) if interrupted and runner is not None else (),
    )
