"""Runs checks over one host and says what came of each: the one way that all commands and test suites use."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from importlib import metadata
from typing import Final, Literal

import msgspec

from flowactions_conformance.kit.baseline import Accepted, Baseline, refuse_unknown, stale_in
from flowactions_conformance.kit.hosts.limits import CHECK_SECONDS, LIMITS, EffectTimeout, Late, Limits
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
from flowactions_conformance.kit.session import Host, Mode, ServedAt, Session
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
        baseline: failures that are accepted.
        strict: whether a should counts as a must.
    """

    def __init__(self, session: Session, host: Host, baseline: Baseline, *, strict: bool = False) -> None:
        self.session = session
        self.host = host
        self._baseline = baseline
        self._strict = strict
        self._shared, self._alone = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(ALONE_AT_ONCE)
        self._first_runs = 0
        self._is_quiet = asyncio.Event()
        self._again = asyncio.Lock()

    async def run(self, check: Check) -> CheckResult:
        """Run one check, as soon as few enough others run beside it; whatever happens, it ends with a result.

        One that ends with an error is tried again when all others have run, alone; likewise one that fails while the
        database or the host did not answer the plugin in time, because a busy machine can cause this, too.
        """
        self._first_runs += 1
        self._is_quiet.clear()
        try:
            async with self._alone if check.alone else self._shared:
                result, is_doubtful = await self._run(check)
        finally:
            self._first_runs -= 1
            if not self._first_runs:
                self._is_quiet.set()
        if is_doubtful:
            async with self._again:
                await self._is_quiet.wait()
                await self.session.until_released()
                result, _ = await self._run(check)
        return result

    async def _run(self, check: Check) -> tuple[CheckResult, bool]:
        """Run one check once; return its result, and whether a second try may tell more."""
        began = time.monotonic()
        command, served = "python -m flowactions_conformance run", self.session.served
        factory = shlex.quote(self.session.factory_name)
        if served is not None:
            env = f" --env {shlex.quote(str(served.env))}" if served.env else ""
            rerun = f"{command} --url {shlex.quote(served.url)}{env} --driver {factory} --check {check.id}"
        else:
            rerun = f"{command} {factory} --check {check.id}"
            if self.session.mode == "child":
                rerun += " --child"
            if self.session.databases.kind == "postgresql":
                rerun += " --database postgresql://…"
        rerun += f" --seed {self.session.seed}"
        result = CheckResult(
            id=check.id,
            profile=check.profile,
            title=check.title,
            clause=check.clause,
            level=check.level,
            since=check.since,
            status=Status.PASS,
            rerun=rerun,
        )
        if check.profile not in self.session.claims or check.needs & self.session.lacks:
            return msgspec.structs.replace(result, status=Status.NOT_CLAIMED), False
        if lacking := self._lacking(check):
            untried = Finding(message=lacking)
            return msgspec.structs.replace(result, status=Status.NOT_TRIED, finding=untried), False
        trial = Trial(self.session, check, None if check.alone else self.host)
        try:
            status, finding = await _judge(check, trial, strict=self._strict)
        finally:
            trial.end()
        if finding is not None:
            finding = msgspec.structs.replace(finding, logged=trial.logged())
        is_doubtful = status is Status.ERROR or (status in FAILURES and trial.saw_overload)
        known = self._baseline.get(check.id)
        if known is not None and not self._accepts(known):
            known = None
        if known is not None and status in FAILURES:
            status = Status.KNOWN
        ended = msgspec.structs.replace(
            result,
            status=status,
            finding=finding,
            timeline=tuple(trial.timeline),
            seconds=time.monotonic() - began,
            known=known.reason if known is not None and status is Status.KNOWN else None,
        )
        return ended, is_doubtful

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

    def _accepts(self, entry: Accepted) -> bool:
        session = self.session
        return not entry.has_expired and entry.holds(session.mode, session.databases.kind)


async def _judge(check: Check, trial: Trial, *, strict: bool) -> tuple[Status, Finding | None]:
    try:
        await trial.session.patience.wait(check.run(trial), CHECK_SECONDS)
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
        return _judged(check, exc, fails=check.fails_hosts(strict=strict))
    if not check.covers <= trial.values.used:
        return Status.ERROR, Finding(
            message="the kit failed in this check: it has not used all kinds of values"
        )
    return Status.PASS, None


def _judged(check: Check, exc: Exception, *, fails: bool) -> tuple[Status, Finding]:
    failed = Status.FAIL if fails else Status.WARN
    match exc:
        case CheckFailed():
            return failed, exc.finding
        case NotTestable():
            untested = Status.NOT_TESTABLE if fails else Status.WARN
            return untested, Finding(message=str(exc), causes=check.causes)
        case DriverFault():
            # The preflight has shown that the driver works: what it cannot do now is the host's doing.
            message = str(exc)
            return failed, Finding(message=message, expected=check.title, actual=message, causes=check.causes)
        case NothingKnown() | NotTried():
            status = Status.ERROR if isinstance(exc, NothingKnown) else Status.NOT_TRIED
            return status, Finding(message=str(exc))
        case Late():
            message = (
                f"the check did not end within {exc.seconds:g} seconds; its timeline shows how far it came"
            )
            return failed, Finding(message=message, causes=check.causes)
    text = f"{type(exc).__name__}: {exc}"
    return Status.ERROR, Finding(message=f"the kit failed in this check: {text}", actual=text)


@asynccontextmanager
async def opened(
    session: Session, baseline: Baseline | None = None, *, strict: bool = False
) -> AsyncIterator[Runner]:
    """Open a session; its shared host has passed the preflight.

    Raises:
        DriverFault: the driver does not do its part.
    """
    async with session.running():
        yield Runner(session, await preflight(session), baseline or {}, strict=strict)


async def run_checks(
    factory: Factory | str,
    ids: Iterable[str] = (),
    *,
    mode: Mode = "in-process",
    server: str | None = None,
    baseline: Baseline | None = None,
    effect_timeout: EffectTimeout | None = None,
    limits: Limits = LIMITS,
    output: Output | None = None,
    time_scale: float = 1.0,
    strict: bool = False,
    within: float | None = None,
    served: ServedAt | None = None,
    seed: int | None = None,
    on_result: Callable[[CheckResult], None] = lambda _: None,
) -> Report:
    """Run checks over one host. Cancelled, it returns the report of the checks that have ended.

    Args:
        factory: the function, or its name as ``package.module:attribute``.
        ids: of checks, groups or profiles; none: all.
        mode: whether hosts run in this process or as child processes.
        server: the URL of a PostgreSQL whose user may create databases; ``None``: SQLite.
        baseline: check id → why its failure is accepted.
        effect_timeout: for how long effects are waited for.
        limits: how long a host may take.
        output: what hosts print; for who has replaced ``sys.stdout`` by it.
        time_scale: of all limits.
        strict: whether a should counts as a must.
        within: seconds after which the run ends, with a report of the checks that have ended; ``None``: never.
        served: where a host is that somebody else has started; then the factory makes its driver.
        seed: of the values that checks draw; ``None``: another one in each run.
        on_result: called with each result as it comes.

    Raises:
        LookupError: there is no check of a name in ``ids`` or ``baseline``.
    """
    chosen = list(ids)
    checks: Sequence[Check] = select(chosen) if chosen else all_checks()
    accepted = baseline or {}
    refuse_unknown(accepted)
    started, began = datetime.now(UTC), time.monotonic()
    session = Session(
        factory,
        mode=mode if served is None else "served",
        server=server,
        effect_timeout=effect_timeout,
        limits=limits,
        output=output,
        time_scale=time_scale,
        served=served,
        seed=seed,
    )
    results: dict[str, CheckResult] = {}
    error: Finding | None = None

    async def one(runner: Runner, check: Check) -> None:
        results[check.id] = await runner.run(check)
        on_result(results[check.id])

    interrupted: Literal["signal", "timeout"] | None = None
    try:
        async with asyncio.timeout(within) as deadline, opened(session, accepted, strict=strict) as runner:
            async with asyncio.TaskGroup() as group:
                for check in checks:
                    if not runner.runs_last(check):
                        group.create_task(one(runner, check))
            for check in filter(runner.runs_last, checks):
                await one(runner, check)
    except (DriverFault, NothingKnown) as exc:
        error = Finding(message=str(exc))
        session.claims = frozenset()  # none of them was tried
    except TimeoutError:
        if not deadline.expired():
            raise
        interrupted = "timeout"
    except asyncio.CancelledError:
        # Who has cancelled this wants to know what was found so far.
        interrupted = "signal"
    report = report_of(
        session, started, began, [results[check.id] for check in checks if check.id in results], error
    )
    return msgspec.structs.replace(
        report,
        stale_baseline=stale_in(accepted, report),
        selected=bool(chosen),
        strict=strict,
        checks=len(checks),
        interrupted=interrupted,
    )


def report_of(
    session: Session,
    started: datetime,
    began: float,
    results: Iterable[CheckResult],
    error: Finding | None = None,
) -> Report:
    """Return the report of a run.

    Args:
        session: of the run.
        started: when it started.
        began: the same in monotonic seconds.
        results: of its checks.
        error: what ended it before any check.
    """
    return Report(
        host=session.factory_name,
        contract=CONTRACT,
        kit=metadata.version("flowactions-plugin"),
        seed=session.seed,
        mode=session.mode,
        database=session.databases.kind,
        started_at=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - began,
        claims=tuple(sorted(session.claims)),
        results=tuple(results),
        error=error,
        output=session.output.text(),
        tested=session.tested(),
        lacks=tuple(sorted(session.lacks)),
    )
