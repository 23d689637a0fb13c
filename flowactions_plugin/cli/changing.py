"""Changes deliveries: single ones at once, those of a filter as a bulk action that workers carry out."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from flowactions_plugin.cli.context import CommandContext, actor
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.options import filter_of
from flowactions_plugin.cli.output import confirmed, hint, line, status, table
from flowactions_plugin.clock import is_id, moment
from flowactions_plugin.errors import CannotRun, StorageUnavailable
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.log_text import plural, span
from flowactions_plugin.operations.bulk import Preview
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.outcomes import MAY_BE_SENT

WORDS: Final = {
    "retry": ("Make {} due now", "due now"),
    "cancel": ("End {} without success", "cancelled"),
    "delete": ("Remove {} for ever", "removed"),
    "resend": ("Send {} again", "queued again"),
}
"""What a command asks, and what it has done."""

ALL: Final = "all"
"""Instead of ids: without any filter."""

NOT_CHANGED: Final = "no delivery has this id, or its state does not allow this"
NOT_RESENT: Final = "not delivered, or retention or a purge has removed it: only what is kept can be sent again"

POLL_SECONDS: Final = 0.5
LINE_SECONDS: Final = 5.0
"""How often a line says how far an action is."""

RETRY_SECONDS: Final = 5.0


async def change(
    context: CommandContext,
    *,
    kind: Kind,
    ids: Sequence[str],
    reason: str,
    yes: bool,
    where: str | None = None,
    reset_attempts: bool = False,
    rate: float | None = None,
) -> int:
    """Change the deliveries with some ids, those that a filter selects, or all.

    Raises:
        CannotRun: it asks for nothing, or for too much.
        FilterInvalid: the filter is wrong.
    """
    if bool(ids) == bool(where):
        raise CannotRun(
            "give ids, or a filter, and not both" if ids else "which ones? Give ids, a filter, or all"
        )
    if ids and tuple(ids) != (ALL,):
        if rate is not None:
            raise CannotRun("--rate is for a filter: deliveries with these ids are changed at once")
        return await _single(context, kind, ids, reason, yes=yes, reset_attempts=reset_attempts)
    wanted = filter_of(where)
    scope, operations = Scope(wanted.only("organization")), context.operations
    preview = await operations.preview(scope, kind, wanted)
    _show(preview, rate)
    if not preview.count:
        return DONE
    if not _agreed(kind, preview.count, yes=yes):
        return FAILED
    action = await operations.change(
        scope, preview.chosen, actor(), reason, reset_attempts=reset_attempts, rate=rate
    )
    if action is None:
        line("nothing meets the filter any more")
        return DONE
    action = await _followed(context, scope, action)
    return FAILED if action.state == "stopped" else DONE


async def _single(
    context: CommandContext, kind: Kind, given: Sequence[str], reason: str, *, yes: bool, reset_attempts: bool
) -> int:
    """Change deliveries one by one, at once."""
    ids = list(dict.fromkeys(each.lower() for each in given))
    if not all(map(is_id, ids)):
        raise CannotRun("one of the ids is none; 'flowactions outbox list' shows them")
    if kind == "delete" and not _agreed(kind, len(ids), yes=yes):
        return FAILED
    number = sent = 0
    for each in ids:
        found = await context.operations.one(
            Scope(), kind, each, actor(), reason, reset_attempts=reset_attempts
        )
        number += found is not None
        if found is None:
            hint(f"{each}: {NOT_RESENT if kind == 'resend' else NOT_CHANGED}")
        elif kind == "resend":
            line(f"{each}: sent again as {found}")
        elif kind == "cancel" and (now := await context.insights.delivery(Scope(), each)) is not None:
            sent += now.row.status == "delivered" or (now.row.last_error or "").endswith(MAY_BE_SENT)
    line(f"{number - sent} of {len(ids)} {WORDS[kind][1]}{_sent(sent)}")
    return DONE if number == len(ids) else FAILED


def _sent(number: int) -> str:
    return f", {number:,} {'was' if number == 1 else 'were'} being sent" if number else ""


def _agreed(kind: Kind, number: int, *, yes: bool) -> bool:
    """Ask whether so many deliveries are to be changed."""
    return confirmed(f"{WORDS[kind][0].format(plural(number, 'delivery', 'deliveries'))}?", yes=yes)


def _show(preview: Preview, rate: float | None) -> None:
    """Print what a filter selects."""
    line(f"{plural(preview.count, 'delivery', 'deliveries')} at {moment(preview.chosen.as_of)}")
    if rate is not None and preview.count:
        line(f"at this rate, they take {span(preview.count / rate * 1000)}")
    if preview.delivered is not None and preview.delivered.number:
        line(f"left out: {preview.delivered} that are delivered; 'outbox resend' sends such deliveries again")
    for name, shares in (("destination", preview.destinations), ("organization", preview.organizations)):
        if name == "destination" or len(shares) > 1:
            table(shares, {name: lambda each: each.name, "deliveries>": lambda each: f"{each.number:,}"})
    sys.stdout.flush()


def _how_to_stop(action: Action) -> str:
    return f"to stop it: flowactions outbox stop {action.id}"


def _say_end(action: Action) -> None:
    """Print the result of an action."""
    reason = f": {action.state_reason}" if action.state_reason else ""
    said = f"{action.done:,} of {action.counted:,} {WORDS[action.kind][1]}{_sent(action.sent)}"
    status(f"{action.state}{reason}; {said}")


async def _followed(context: CommandContext, scope: Scope, action: Action) -> Action:
    """Say how an action is stopped, and follow it where a worker carries it out; return it as it is then."""
    if action.finished_at is None:
        status(f"action {action.id}: {_how_to_stop(action)}")
        if any(worker.state == "alive" for worker in await context.insights.workers()):
            action = await _follow(context, scope, action)
        else:
            status(
                "no worker is alive: the action waits until one runs; to see how far it is: flowactions status"
            )
    if action.finished_at is not None:
        _say_end(action)
    return action


async def _follow(context: CommandContext, scope: Scope, action: Action) -> Action:
    """Show the progress of an action until it has ended; wait for a database that is away meanwhile.

    When the command is interrupted, the action continues: workers execute it. The command says how to see or stop it.
    """
    said, said_at, before = "", 0.0, action.done
    try:
        while action.finished_at is None:
            now = time.monotonic()
            if action.state != said or now >= said_at + LINE_SECONDS:
                rate = (action.done - before) / (now - said_at)
                left = (action.counted - action.done) / rate * 1000 if rate else 0
                pace = f", {rate:,.1f}/s, {span(left)} left" if rate else ""
                status(f"{action.state}: {action.done:,} of {action.counted:,}{pace}")
                said, said_at, before = action.state, now, action.done
            await asyncio.sleep(POLL_SECONDS)
            try:
                action = await context.insights.action(scope, action.id) or action
            except StorageUnavailable as exc:
                status(f"waiting for the database: {exc}")
                await asyncio.sleep(RETRY_SECONDS)
    except asyncio.CancelledError:
        status(f"the action continues; to see how far it is: flowactions status; {_how_to_stop(action)}")
        raise
    return action


async def stop(context: CommandContext, action_id: str) -> int:
    """Stop a bulk action."""
    stopped = await context.operations.stop(Scope(), action_id, actor())
    if stopped is None:
        status("flowactions: no bulk action has this id; 'flowactions status' lists them")
        return FAILED
    _say_end(stopped)
    return DONE if stopped.state == "stopped" else FAILED
