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

WORDS: Final = {
    "retry": ("Make {} due now", "due now"),
    "cancel": ("End {} without success", "cancelled"),
    "delete": ("Remove {} for ever", "removed"),
    "resend": ("Send {} again", "queued again"),
}
"""What a command asks, and what it has done."""

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
    everything: bool = False,
    reset_attempts: bool = False,
    rate: float | None = None,
    canary: int = 0,
    **given: str | None,
) -> int:
    """Change the deliveries with some ids, or those that a filter selects.

    Raises:
        CannotRun: it asks for nothing, or for too much.
        FilterInvalid: a value of the filter is wrong.
        SetChanged: the set is another than the one that was shown.
    """
    filtered = any(given.values())
    if not ids and filtered == everything:
        raise CannotRun("--all is for no filter at all" if filtered else "which ones? Give ids or a filter")
    if ids:
        if filtered or everything:
            raise CannotRun("give ids, or a filter, and not both")
        if rate is not None or canary:
            raise CannotRun(
                "--rate and --canary are for a filter: deliveries with these ids are changed at once"
            )
        return await _single(context, kind, ids, reason, yes=yes, reset_attempts=reset_attempts)
    wanted = filter_of(given)
    scope, operations = Scope(wanted.organization_id), context.operations
    preview = await operations.preview(scope, kind, wanted, rate=rate)
    _show(preview)
    if not preview.chosen.count:
        return DONE
    if not _agreed(kind, preview.chosen.count, yes=yes):
        return FAILED
    action = await operations.change(
        scope, preview.chosen, actor(), reason, reset_attempts=reset_attempts, rate=rate, canary=canary
    )
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
    number = 0
    for each in ids:
        found = await context.operations.one(
            Scope(), kind, each, actor(), reason, reset_attempts=reset_attempts
        )
        number += found is not None
        if found is None:
            hint(f"{each}: {NOT_RESENT if kind == 'resend' else NOT_CHANGED}")
        elif kind == "resend":
            line(f"{each}: sent again as {found}")
    line(f"{number} of {len(ids)} {WORDS[kind][1]}")
    return DONE if number == len(ids) else FAILED


def _agreed(kind: Kind, number: int, *, yes: bool) -> bool:
    """Ask whether so many deliveries are to be changed."""
    return confirmed(f"{WORDS[kind][0].format(plural(number, 'delivery', 'deliveries'))}?", yes=yes)


def _show(preview: Preview) -> None:
    """Print what a filter selects."""
    line(f"{plural(preview.chosen.count, 'delivery', 'deliveries')} at {moment(preview.chosen.as_of)}")
    if preview.seconds_to_drain is not None and preview.chosen.count:
        line(f"about {span(preview.seconds_to_drain * 1000)} to send them")
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
    status(f"{action.state}{reason}; {action.done:,} of {action.counted:,} {WORDS[action.kind][1]}")


async def _followed(context: CommandContext, scope: Scope, action: Action) -> Action:
    """Say how an action is stopped, and follow it where a worker carries it out; return it as it is then."""
    if action.finished_at is None:
        begins = f" begins at {moment(action.starts_at)};" if action.state == "waiting" else ""
        status(f"action {action.id}{begins} {_how_to_stop(action)}")
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
                why = f" ({action.state_reason})" if action.state_reason else ""
                status(f"{action.state}{why}: {action.done:,} of {action.counted:,}{pace}")
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
