"""The checks of ``flowactions doctor``, in the order in which one depends on another. They change nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Container, Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from flowactions_hookspecs import FlowActionsError, Host
from flowactions_plugin.cli.checks import (
    Check,
    Checks,
    Result,
    check_chat,
    check_egress,
    check_keys,
    check_proxy,
)
from flowactions_plugin.cli.context import CommandContext, context_with, opened_database, opened_host
from flowactions_plugin.cli.frame import DONE, FAILED, FAILING, STALLED
from flowactions_plugin.errors import CannotRun, SchemaNewer, SchemaOutdated, StorageUnavailable
from flowactions_plugin.insights.filters import Filter
from flowactions_plugin.insights.findings import NAMED, SYNCHRONIZE, see, workers_words
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Delivery, Overview
from flowactions_plugin.insights.verdict import SKEW_MS, WRONG_CLOCK_MS, snapshot_words
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.settings.advice import pace_of, warnings_of
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.migrations import head
from flowactions_plugin.storage.postgresql import OPEN_SECONDS
from flowactions_plugin.watch.readiness import try_writing

SLOW_MS: Final = 200.0
"""A database that answers later than this makes everything slow."""

NODE_FAILURES: Final = 3
"""From so many failed deliveries on, a node is judged."""

NODE_READ: Final = 50
"""How many of a node's last deliveries decide whether most of them fail."""

NODES_JUDGED: Final = 2 * NAMED
"""How many nodes of the overview are judged, those with the most failures first."""

NO_ATTEMPT: Final = frozenset({"waits", "not_sent", "cancelled"})
"""Kinds of failure that say nothing of a flow: it waits for the host, was ended by the plugin, or by a person."""


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
            settings = context.settings
            if settings.egress_proxy is not None:
                if made is None or made.transport is None:
                    await checks.guarded("proxy", check_proxy(checks, settings))
                else:
                    checks.add("proxy", "skipped", "not tried: the host sends through its own transport")
            for url in urls:
                await checks.guarded("egress", check_egress(checks, context, url))
            if settings.alerts_url is None:
                checks.add("alerts", "skipped", "FLOWACTIONS_ALERTS_URL is not set: no alert is sent")
            else:
                await checks.guarded("alerts", check_egress(checks, context, settings.alerts_url, "alerts"))
            if await _is_open(checks, context, stack):
                for name, check in (
                    ("writing", _writing(checks, context)),
                    ("clock", _clock(checks, context)),
                    ("transactions", _transactions(checks, context)),
                    ("keys", check_keys(checks, context)),
                    ("chat", check_chat(checks, context, asks=with_chat)),
                ):
                    await checks.guarded(name, check)
                verdict = await check_deliveries(checks, context)
    failed = any(check.result == "failed" for check in checks.found)
    code = {"stalled": STALLED, "failing": FAILING}.get(verdict or "", FAILED if failed else DONE)
    return Diagnosis(verdict=verdict, exit_status=code, checks=checks.found)


def _settings(checks: Checks, host: Host | None) -> CommandContext | None:
    try:
        context = context_with(host, read_settings(os.environ if host is None else host.settings, host))
    except FlowActionsError as exc:
        advice = "correct them; docs/reference/settings.md describes each"
        checks.add("settings", "failed", str(exc), advice)
        return None
    settings = context.settings
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
    return context


async def _is_open(checks: Checks, context: CommandContext, stack: AsyncExitStack) -> bool:
    """Open the database, and check the revision of its tables; return whether it could be opened."""
    database = context.database
    try:
        await stack.enter_async_context(opened_database(database))
    except (SchemaNewer, SchemaOutdated) as exc:
        checks.add("database", "ok", f"{database.dialect} answers")
        words, _, advice = str(exc).partition(": ")
        checks.add("migrations", "failed", words, advice)
        return False
    except CannotRun as exc:
        words, _, advice = str(exc).partition(": ")
        checks.add("database", "failed", words, advice)
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


async def _writing(checks: Checks, context: CommandContext) -> None:
    try:
        await try_writing(context.database)
    except StorageUnavailable as exc:
        advice = "nothing can be enqueued, claimed or completed until the database can be written; then everything continues without a restart"
        checks.add("writing", "failed", str(exc), advice)
    else:
        checks.add("writing", "ok", "a row was written, and removed")


async def _clock(checks: Checks, context: CommandContext) -> None:
    if not context.database.sql.is_server:
        words = "SQLite uses this machine's clock: no other clock to compare it with"
        checks.add("clock", "skipped", words)
        return
    before = context.database.clock()
    theirs = await context.database.time()
    after = context.database.clock()
    # Only what the time of the question cannot explain is skew.
    skew = 0.0 if before <= theirs <= after else min(theirs - before, theirs - after, key=abs)
    if abs(skew) * 1000 < SKEW_MS:
        checks.add("clock", "ok", "this machine's clock and the database's agree")
        return
    said = f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database's"
    checks.add("clock", "failed" if abs(skew) * 1000 >= WRONG_CLOCK_MS else "warning", said, SYNCHRONIZE)


async def _transactions(checks: Checks, context: CommandContext) -> None:
    name, database = "transactions", context.database
    if not database.sql.is_server:
        checks.add(name, "skipped", "SQLite keeps no old versions of rows")
        return
    async with database.read() as connection:
        found = await connection.run_sync(database.oldest_snapshot)
    if found is None:
        words = f"none has been open for {OPEN_SECONDS // 60} minutes, as far as this role may see"
        checks.add(name, "ok", words)
    else:
        advice = "see whether it is still needed; SELECT pg_terminate_backend(<pid>) ends a process, pg_drop_replication_slot a slot"
        checks.add(name, "warning", snapshot_words(found), advice)


async def check_deliveries(checks: Checks, context: CommandContext) -> str | None:
    """Tell the findings of the overview, those on deliveries last; return the verdict, ``None``: the database cannot be asked."""
    insights = context.insights
    try:
        overview = await insights.overview(Scope(), NODES_JUDGED)
        about = {each.about for each in overview.findings}
        if "workers" not in about:
            now = int(await context.database.time() * 1000)
            checks.add("workers", "ok", workers_words(overview.workers, now))
        failing = frozenset(each.destination for each in await insights.failing(NAMED))
        for last in (False, True):
            if last:
                await _nodes(checks, insights, overview, failing)
            for each in overview.findings:
                if (each.about == "deliveries") is last:
                    result: Result = "failed" if each.level == "failed" else "warning"
                    checks.add(each.about, result, each.words, each.advice)
    except FlowActionsError as exc:
        checks.add("deliveries", "failed", str(exc))
        return None
    verdict = overview.verdict
    if "deliveries" not in about:
        words = f"{verdict.state}: {verdict.reason} (due {overview.due}, dead {overview.dead})"
        checks.add("deliveries", "ok", words)
    return verdict.state


async def _nodes(checks: Checks, insights: Insights, overview: Overview, failing: Container[str]) -> None:
    """Name nodes that have several failed deliveries now, and most of whose last ones failed, if their destinations work."""
    wrong = 0
    for origin in overview.failures.nodes:
        organization, flow, node = origin.organization_id, origin.flow_id or "", origin.node_id or ""
        if origin.failed < NODE_FAILURES:
            break
        wanted = Filter(organization_id=organization, flow_id=origin.flow_id, node_id=origin.node_id)
        page = await insights.deliveries(Scope(), wanted, None, NODE_READ)
        rows = [each for each in page.rows if each.destination not in failing]
        ended = [each for each in rows if each.status == "delivered" or _has_failed(each)]
        bad = [each for each in ended if each.status != "delivered"]
        if len(bad) < NODE_FAILURES or 2 * len(bad) <= len(ended):
            continue
        wrong += 1
        if wrong <= NAMED:
            whose = (
                f"node {printable(node)} of flow {printable(flow)} of organization {printable(organization)}"
            )
            why = printable(bad[0].last_error, message=True)
            words = f"{whose}: {len(bad)} of its last {len(ended)} deliveries have failed: {why}"
            checks.add("node", "warning", words, see(organization=organization, flow=flow, node=node))
    if wrong > NAMED:
        what = ("more node has deliveries that fail", "more nodes have deliveries that fail")
        words = plural(wrong - NAMED, *what, exact=False)
        checks.add("node", "warning", words, "flowactions outbox list --status dead")


def _has_failed(row: Delivery) -> bool:
    """Return whether a delivery has failed, by an attempt or because it may not be sent there."""
    return row.error_class is not None and row.error_class not in NO_ATTEMPT
