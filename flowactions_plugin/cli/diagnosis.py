"""The checks of ``flowactions doctor``, in the order in which one depends on another. They change nothing."""

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
from flowactions_plugin.cli.delivery_checks import check_deliveries
from flowactions_plugin.cli.frame import DONE, FAILED, FAILING, STALLED
from flowactions_plugin.errors import SchemaNewer, StorageUnavailable
from flowactions_plugin.insights.findings import SYNCHRONIZE
from flowactions_plugin.insights.verdict import SKEW_MS, WRONG_CLOCK_MS, snapshot_words
from flowactions_plugin.settings.advice import pace_of, warnings_of
from flowactions_plugin.settings.model import read_settings, settings_of
from flowactions_plugin.storage.migrations import outdated
from flowactions_plugin.storage.postgresql import OPEN_SECONDS

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
            if context.settings.egress_proxy is not None:
                if made is None or made.transport is None:
                    await checks.guarded("proxy", check_proxy(checks, context.settings))
                else:
                    checks.skip("proxy", "not tried: the host sends through its own transport")
            for url in urls:
                await checks.guarded("egress", check_egress(checks, context, url))
            await checks.guarded("alerts", check_alerts(checks, context))
            if await _tables(checks, context):
                stack.push_async_exit(context.database)
                await context.database.open(required=True)
                await checks.guarded("writing", _writing(checks, context))
                await checks.guarded("clock", _clock(checks, context))
                await checks.guarded("transactions", _transactions(checks, context))
                await checks.guarded("keys", check_keys(checks, context))
                await checks.guarded("chat", check_chat(checks, context, asks=with_chat))
                verdict = await check_deliveries(checks, context)
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
    apart = "'flowactions worker', not by the host's processes"
    own = "'flowactions worker'; the host's processes send what they enqueue"
    who = {"on": "the host's processes", "own": own, "off": apart}[settings.host_worker]
    checks.ok("settings", f"{settings.environment}, {settings.delivery} delivery by {who}")
    if settings.environment == "development":
        advice = "set FLOWACTIONS_ENVIRONMENT=production where customers' URLs are used"
        checks.warn("settings", "in development, webhooks may go to private addresses", advice)
    if pace := pace_of(settings):
        checks.ok("settings", f"{pace.words}; {pace.advice}")
    for words, advice in warnings_of(settings):
        checks.warn("settings", words, advice)
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
        # With a code, the error itself says what to do.
        advice = "see that it runs and that the URL's host, user and password are right"
        checks.fail("database", str(exc), "" if getattr(exc, "code", None) else advice)
        return False
    took = (time.perf_counter() - began) * 1000
    file = context.database.file
    place = "" if file is None else f"; its file is {file}"
    answers = f"{context.database.dialect} answers in {took:.0f} ms, connecting included{place}"
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
    from flowactions_plugin.watch.readiness import try_writing

    try:
        await try_writing(context.database)
    except StorageUnavailable as exc:
        advice = "nothing can be enqueued, claimed or completed until the database can be written; then everything continues without a restart"
        checks.fail("writing", str(exc), advice)
    else:
        checks.ok("writing", "a row was written, and removed")


async def _clock(checks: Checks, context: CommandContext) -> None:
    if not context.database.sql.is_server:
        checks.skip("clock", "SQLite uses this machine's clock: no other clock to compare it with")
        return
    before = context.database.clock()
    theirs = await context.database.time()
    after = context.database.clock()
    # Only what the time of the question cannot explain is skew.
    skew = 0.0 if before <= theirs <= after else min(theirs - before, theirs - after, key=abs)
    said = f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    if abs(skew) * 1000 >= WRONG_CLOCK_MS:
        checks.fail("clock", said, SYNCHRONIZE)
    elif abs(skew) * 1000 >= SKEW_MS:
        checks.warn("clock", said, SYNCHRONIZE)
    else:
        checks.ok("clock", "this machine's clock and the database's agree")


async def _transactions(checks: Checks, context: CommandContext) -> None:
    name, database = "transactions", context.database
    if not database.sql.is_server:
        checks.skip(name, "SQLite keeps no old versions of rows")
        return
    async with database.read() as connection:
        found = await connection.run_sync(database.oldest_snapshot)
    if found is None:
        checks.ok(name, f"none has been open for {OPEN_SECONDS // 60} minutes, as far as this role may see")
    else:
        advice = "see whether it is still needed; SELECT pg_terminate_backend(<pid>) ends a process, pg_drop_replication_slot a slot"
        checks.warn(name, snapshot_words(found), advice)
