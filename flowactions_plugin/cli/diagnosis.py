"""The checks of ``flowactions doctor``, in the order in which one depends on another. None of them leaves anything behind."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from flowactions_hookspecs import FlowActionsError, Host
from flowactions_plugin.cli.checks import (
    Check,
    Checks,
    check_alerts,
    check_chat,
    check_egress,
    check_keys,
    check_proxy,
)
from flowactions_plugin.cli.context import CommandContext, context_with, opened_host
from flowactions_plugin.cli.frame import DONE, FAILED, FAILING, STALLED
from flowactions_plugin.cli.output import moment
from flowactions_plugin.deliveries.curl import quoted
from flowactions_plugin.errors import SchemaNewer, StorageUnavailable
from flowactions_plugin.health.results import Worker
from flowactions_plugin.log_text import printable
from flowactions_plugin.settings.model import read_settings, settings_of
from flowactions_plugin.storage.migrations import outdated
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION

SLOW_MS: Final = 200.0
"""A database that answers later than this makes everything slow."""

SKEW_SECONDS: Final = 5.0
WAITING_READ: Final = 50
"""How many of the deliveries that wait are read, to name what they wait for."""

HOUR_MS: Final = 3600 * 1000
WRONG_CLOCK_SECONDS: Final = 240.0
"""Receivers reject a signature whose time is five minutes away."""


class Diagnosis(msgspec.Struct, kw_only=True, rename="camel"):
    """What `doctor` found.

    Attributes:
        verdict: on delivery: `ok`, `idle`, `unwritable`, `stalled`, `no_worker` or `failing`; `null` when the database cannot be asked.
        exit_status: that of the command.
        checks: in the order in which they were made.
    """

    verdict: str | None
    exit_status: int
    checks: list[Check]


ADVICE: Final = {
    "stalled": "see that a worker runs and reaches the database: flowactions workers",
    "unwritable": "give the database room, or the right to write: the check 'writing' says which",
    "failing": "see which destinations fail: flowactions destinations list",
}
"""What to do about a verdict."""


async def diagnose(host: str | None, urls: Sequence[str], *, with_chat: bool) -> Diagnosis:
    """Make all checks, of a host or of the environment's settings; for each URL, say what would happen to a webhook to it.

    Raises:
        CannotRun: the host cannot be made.
        HostInvalid: it is none.
    """
    checks = Checks()
    verdict: str | None = None
    async with AsyncExitStack() as stack:
        made = None if host is None else await stack.enter_async_context(opened_host(host))
        context = _settings(checks, made)
        if context is not None:
            if context.settings.egress_proxy is not None and (made is None or made.transport is None):
                await checks.guarded("proxy", check_proxy(checks, context.settings))
            for url in urls:
                await checks.guarded("egress", check_egress(checks, context, url))
            await checks.guarded("alerts", check_alerts(checks, context))
            if await _tables(checks, context):
                stack.push_async_exit(context.database)
                await context.database.open(required=True)
                await checks.guarded("writing", _writing(checks, context))
                await checks.guarded("clock", _clock(checks, context))
                await checks.guarded("keys", check_keys(checks, context))
                if with_chat:
                    await checks.guarded("chat", check_chat(checks, context))
                verdict = await _deliveries(checks, context)
    failed = any(check.result == "failed" for check in checks.found)
    code = {"stalled": STALLED, "failing": FAILING}.get(verdict or "", FAILED if failed else DONE)
    return Diagnosis(verdict=verdict, exit_status=code, checks=checks.found)


def _settings(checks: Checks, host: Host | None) -> CommandContext | None:
    try:
        context = context_with(host, read_settings(os.environ) if host is None else settings_of(host))
    except FlowActionsError as exc:
        checks.fail("settings", str(exc), "correct them; docs/reference/settings.md describes each")
        return None
    settings = context.settings
    who = "nobody: run 'flowactions worker'" if not settings.host_worker else "the host's processes"
    checks.ok("settings", f"{settings.environment}, {settings.delivery} delivery by {who}")
    if settings.environment == "development":
        advice = "set FLOWACTIONS_ENVIRONMENT=production where customers' URLs are used"
        checks.warn("settings", "in development, webhooks may go to private addresses", advice)
    return context


async def _tables(checks: Checks, context: CommandContext) -> bool:
    """Check the database and the revision of its tables; return whether it can be opened."""
    missing = context.database.missing_file
    if missing is not None:
        advice = (
            "the worker or 'flowactions migrate' makes them; if you expect tables, set FLOWACTIONS_DATABASE_URL "
            "or name the host with --host"
        )
        checks.fail("database", f"no tables yet: the file {missing} does not exist", advice)
        return False
    began = time.perf_counter()
    try:
        before, wanted = await context.database.migrate(dry=True)
    except SchemaNewer as exc:
        checks.ok("database", f"{context.database.dialect} answers")
        checks.fail("migrations", str(exc), "run this command of the release that the tables are of")
        return False
    except FlowActionsError as exc:
        advice = "see that it runs and that the URL's host, user and password are right"
        checks.fail("database", str(exc), advice)
        return False
    took = (time.perf_counter() - began) * 1000
    answers = f"{context.database.dialect} answers in {took:.0f} ms, connecting included"
    if took > SLOW_MS:
        checks.warn("database", answers, "see whether the database or the network to it is overloaded")
    else:
        checks.ok("database", answers)
    if before != wanted:
        found, _, advice = outdated(before, wanted).partition(": ")
        checks.fail("migrations", found, advice)
        return False
    checks.ok("migrations", f"the tables are at revision {wanted}, as this release needs")
    return True


async def _writing(checks: Checks, context: CommandContext) -> None:
    from flowactions_plugin.health.writes import try_writing

    try:
        await try_writing(context.database)
    except StorageUnavailable as exc:
        advice = "nothing can be enqueued, claimed or completed until the database can be written; then all goes on by itself"
        checks.fail("writing", str(exc), advice)
    else:
        checks.ok("writing", "a row was written, and removed")


async def _clock(checks: Checks, context: CommandContext) -> None:
    if not context.database.sql.has_clock:
        checks.skip("clock", "SQLite uses this machine's clock, and there is no other to compare it with")
        return
    before = context.database.clock()
    theirs = await context.database.time()
    after = context.database.clock()
    # Only what the time of the question cannot explain is skew.
    skew = 0.0 if before <= theirs <= after else min(theirs - before, theirs - after, key=abs)
    said = f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    advice = "synchronize both clocks (NTP): signatures carry this machine's time, and receivers refuse those of five minutes away"
    if abs(skew) >= WRONG_CLOCK_SECONDS:
        checks.fail("clock", said, advice)
    elif abs(skew) >= SKEW_SECONDS:
        checks.warn("clock", said, advice)
    else:
        checks.ok("clock", "this machine's clock and the database's agree")


async def _deliveries(checks: Checks, context: CommandContext) -> str | None:
    """Check whether deliveries go on; return the verdict."""
    from flowactions_plugin.deliveries.filters import Filter
    from flowactions_plugin.deliveries.operator_queries import OperatorQueries
    from flowactions_plugin.health.statistics import fails
    from flowactions_plugin.operators.scope import Scope
    from flowactions_plugin.queue.rules import FINISHED

    queries = OperatorQueries.of(context.database, context.settings)
    try:
        overview = await queries.overview(Scope())
        waiting = (await queries.deliveries(Scope(), Filter(error_class="waits"), None, WAITING_READ)).rows
    except FlowActionsError as exc:
        checks.fail("deliveries", str(exc))
        return None
    now = int(await context.database.time() * 1000)
    _workers(checks, overview.workers, now)
    for reason in dict.fromkeys(each.last_error for each in waiting if each.status not in FINISHED):
        checks.warn(
            "waiting",
            f"deliveries wait, without an attempt: {printable(reason, message=True)}",
            "mend what is named; they go on by themselves: flowactions outbox list --error waits",
        )
    if overview.alerts is not None:
        checks.warn(
            "alerts",
            f"alerts do not arrive at {printable(overview.alerts.destination)}: {overview.alerts.failures_in_row} "
            f"failures in a row since {moment(overview.alerts.failing_since)}: {overview.alerts.last_error}",
            "see what it answers: flowactions outbox list --destination "
            f"{quoted(overview.alerts.destination)}, then outbox show of one",
        )
    for each in overview.worst:
        if each.organization_id == EVERY_ORGANIZATION:
            continue  # that of alerts
        # One whose failures are older has had nothing to send since.
        if each.failed and each.failing_since and fails(each.failing_since, now, each.failures_in_row):
            checks.warn(
                "destination",
                f"{printable(each.destination)} of organization {printable(each.organization_id)} has failed "
                f"{each.failures_in_row} times in a row since {moment(each.failing_since)}: {each.last_error}",
                "see what it answers: flowactions outbox list --destination "
                f"{quoted(each.destination)}, then outbox show of one",
            )
    verdict, more = overview.verdict, "" if overview.due_exact else "+"
    said = f"{verdict.state}: {verdict.reason} (due {overview.due}{more}, dead {overview.dead})"
    if verdict.state in {"ok", "idle"}:
        checks.ok("deliveries", said)
    elif verdict.state == "no_worker":
        checks.warn("deliveries", said, "see that a worker runs: flowactions workers")
    else:
        checks.fail("deliveries", said, ADVICE[verdict.state])
    return verdict.state


def _workers(checks: Checks, workers: Sequence[Worker], now: int) -> None:
    """Check whether workers are alive, and whether they end without being stopped."""
    alive = [each for each in workers if each.state == "alive"]
    lost = [each for each in workers if each.state == "stale" and each.last_seen_at > now - HOUR_MS]
    in_flight = sum(worker.in_flight for worker in alive)
    said = f"{len(alive)} alive, {in_flight} in flight" if alive else "none is alive"
    if lost:
        said += f"; {len(lost)} of the last hour ended without being stopped: killed, crashed, or without the database"
    if not alive:
        checks.warn("workers", said, "start the host, or 'flowactions worker' where it leaves delivering to it")
    elif lost:
        advice = "see which: flowactions workers; then the last lines of their logs, and what their memory was"
        checks.warn("workers", said, advice)
    else:
        checks.ok("workers", said)
