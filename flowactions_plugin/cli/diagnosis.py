"""``flowactions doctor``: its checks, in the order in which one depends on another. They change nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import msgspec

from flowactions_hookspecs import FlowActionsError, SettingsInvalid
from flowactions_plugin.cli.checks import Check, Checks, Said, check_chat, check_egress, check_keys, check_proxy
from flowactions_plugin.cli.context import CommandContext, context_of, opened_database
from flowactions_plugin.cli.frame import DONE, FAILED, FAILING, STALLED
from flowactions_plugin.cli.output import line
from flowactions_plugin.errors import CannotRun, SchemaNewer, SchemaOutdated, StorageUnavailable
from flowactions_plugin.insights.facts import SKEW_MS, WRONG_CLOCK_MS
from flowactions_plugin.insights.findings import SYNCHRONIZE, advice_of, workers_words
from flowactions_plugin.insights.standing import may_only_read
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.advice import pace_of, warnings_of
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.migrations import head
from flowactions_plugin.watch.readiness import try_writing

SLOW_MS: Final = 200.0
"""A database that answers later than this makes everything slow."""


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


async def doctor(host: str | None, urls: Sequence[str], with_chat: bool) -> tuple[Diagnosis, int]:
    """Make all checks, of a host or of the environment's settings; for each URL, say what would happen to a webhook to it.

    Raises:
        CannotRun: the host cannot be made.
        HostInvalid: it is none.
    """
    checks = Checks()
    verdict: str | None = None
    async with AsyncExitStack() as stack:
        try:
            context = await stack.enter_async_context(context_of(host))
        except SettingsInvalid as exc:
            checks.add(
                "settings", "failed", str(exc), "correct them; docs/reference/settings.md describes each"
            )
        else:
            verdict = await _with_settings(checks, context, stack, urls, with_chat=with_chat)
    failed = any(check.result == "failed" for check in checks.found)
    code = {"stalled": STALLED, "failing": FAILING}.get(verdict or "", FAILED if failed else DONE)
    for check in checks.found:
        line(f"{check.result:8} {check.name:12} {check.message}")
        if check.advice:
            line(f"{'':21} -> {check.advice}")
    return Diagnosis(verdict=verdict, exit_status=code, checks=checks.found), code


async def _with_settings(
    checks: Checks, context: CommandContext, stack: AsyncExitStack, urls: Sequence[str], *, with_chat: bool
) -> str | None:
    """Make the checks for which the settings must be right; return the verdict."""
    settings, host = context.settings, context.host
    _settings(checks, settings)
    if settings.egress_proxy is not None:
        if host is None or host.transport is None:
            await checks.guarded("proxy", check_proxy(settings))
        else:
            checks.add("proxy", "skipped", "not tried: the host sends through its own transport")
    for url in urls:
        await checks.guarded("egress", check_egress(context, url))
    if settings.alerts_url is None:
        checks.add("alerts", "skipped", "FLOWACTIONS_ALERTS_URL is not set: no alert is sent")
    else:
        await checks.guarded("alerts", check_egress(context, settings.alerts_url))
    if not await _is_open(checks, context, stack):
        return None
    for name, check in (
        ("pooler", _pooler),
        ("writing", _writing),
        ("clock", _clock),
        ("keys", check_keys),
        ("chat", partial(check_chat, checks, asks=with_chat)),
    ):
        await checks.guarded(name, check(context))
    return await check_deliveries(checks, context)


def _settings(checks: Checks, settings: Settings) -> None:
    """Say who delivers, and what the settings allow that is hardly meant so."""
    apart = "'flowactions worker', not by the host's processes"
    own = "'flowactions worker'; the host's processes send what they enqueue"
    who = {"on": "the host's processes", "own": own, "off": apart}[settings.host_worker]
    checks.add("settings", "ok", f"{settings.environment}, {settings.delivery} delivery by {who}")
    if settings.environment == "development":
        advice = "set FLOWACTIONS_ENVIRONMENT=production where customers' URLs are used"
        words = "in development, webhooks may go to private addresses"
        checks.add("settings", "warning", words, advice)
    if pace := pace_of(settings):
        checks.add("settings", "ok", f"{pace.words}; {pace.advice}")
    for words, advice in warnings_of(settings):
        checks.add("settings", "warning", words, advice)


async def _is_open(checks: Checks, context: CommandContext, stack: AsyncExitStack) -> bool:
    """Open the database, and check the revision of its tables; return whether it could be opened."""
    database = context.database
    try:
        await stack.enter_async_context(opened_database(database))
    except (CannotRun, SchemaNewer, SchemaOutdated) as exc:
        name = "database"
        if not isinstance(exc, CannotRun):
            name = "migrations"
            checks.add("database", "ok", f"{database.dialect} answers")
        words, _, advice = str(exc).partition(": ")
        checks.add(name, "failed", words, advice)
        return False
    except FlowActionsError as exc:
        # With a code, the error itself says what to do.
        advice = "see that it runs and that the URL's host, user and password are right"
        checks.add("database", "failed", str(exc), "" if getattr(exc, "code", None) else advice)
        return False
    began = time.perf_counter()
    await database.time()
    took = (time.perf_counter() - began) * 1000
    place = "" if database.file is None else f"; its file is {database.file}"
    answers = f"{database.dialect} answers in {took:.0f} ms{place}"
    if took > SLOW_MS:
        advice = "see whether the database or the network to it is overloaded"
        checks.add("database", "warning", answers, advice)
    else:
        checks.add("database", "ok", answers)
    checks.add("migrations", "ok", f"the tables are at revision {head()}, as this release needs")
    return True


async def _pooler(context: CommandContext) -> Said | None:
    words = await context.database.misses_statements() if context.database.sql.is_server else None
    advice = "until then, calls fail now and then, and what they enqueue is lost"
    return None if words is None else Said("failed", words, advice)


async def _writing(context: CommandContext) -> Said:
    async with context.database.read() as connection:
        if may_only_read(await connection.run_sync(context.database.lacking)):
            return Said("skipped", "this process's role may only read")
    try:
        await try_writing(context.database)
    except StorageUnavailable as exc:
        advice = "nothing can be enqueued, claimed or completed until the database can be written; then everything continues without a restart"
        return Said("failed", str(exc), advice)
    return Said("ok", "a row of each table was written, changed and removed")


async def _clock(context: CommandContext) -> Said:
    if not context.database.sql.is_server:
        return Said("skipped", "SQLite uses this machine's clock: no other clock to compare it with")
    before = context.database.clock()
    theirs = await context.database.time()
    after = context.database.clock()
    # Only what the time of the question cannot explain is skew.
    skew = 0.0 if before <= theirs <= after else min(theirs - before, theirs - after, key=abs)
    if abs(skew) * 1000 < SKEW_MS:
        return Said("ok", "this machine's clock and the database's agree")
    said = f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    return Said("failed" if abs(skew) * 1000 >= WRONG_CLOCK_MS else "warning", said, SYNCHRONIZE)


async def check_deliveries(checks: Checks, context: CommandContext) -> str | None:
    """Tell the findings of the overview, and the verdict last, which this returns; ``None``: the database cannot be asked."""
    try:
        overview = await context.insights.overview(Scope())
        now = int(await context.database.time() * 1000)
    except FlowActionsError as exc:
        checks.add("deliveries", "failed", str(exc))
        return None
    if all(each.about != "workers" for each in overview.findings):
        checks.add("workers", "ok", workers_words(overview.workers, now))
    verdict, advice = overview.verdict, ""
    for each in overview.findings:
        if each.state == verdict.state and each.about in {"deliveries", "writing"}:
            advice = advice_of(each)  # the verdict says the same
        else:
            checks.add(
                each.about, "warning" if each.level == "note" else each.level, each.words, advice_of(each)
            )
    words = f"{verdict.state}: {verdict.reason} (due {overview.due}, dead {overview.dead})"
    checks.add("deliveries", verdict.level, words, advice)
    return verdict.state
