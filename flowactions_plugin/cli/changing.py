"""Changes deliveries: single ones at once, those of a filter as a bulk action that workers carry out."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

import msgspec

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


class Changed(msgspec.Struct, kw_only=True, rename="camel"):
    """A single delivery.

    Attributes:
        id: id of the delivery.
        changed: whether the delivery was changed; its state may not allow it.
        resent_as: for `outbox resend`: id of the new delivery; missing for other commands, and if nothing was
            sent.
    """

    id: str
    changed: bool
    resent_as: str | msgspec.UnsetType = msgspec.UNSET


class Outcome(msgspec.Struct, kw_only=True, rename="camel"):
    """The result of a command on many deliveries.

    Attributes:
        preview: the deliveries that the filter has selected; `null` for single deliveries.
        action: the bulk action in its present state; `null` with `--dry-run`, when nothing is selected, and for single deliveries.
        deliveries: single deliveries, and whether each was changed; empty for a filter.
    """

    preview: Preview | None = None
    action: Action | None = None
    deliveries: list[Changed] = msgspec.field(default_factory=list)


class ActionList(msgspec.Struct, kw_only=True, rename="camel"):
    """Bulk actions.

    Attributes:
        data: the latest first.
    """

    data: list[Action]


async def change(
    context: CommandContext,
    *,
    kind: Kind,
    ids: Sequence[str],
    everything: bool,
    reason: str,
    dry_run: bool,
    yes: bool,
    reset_attempts: bool = False,
    rate: float | None = None,
    canary: int = 0,
    **given: str | None,
) -> int | tuple[Outcome, int]:
    """Change the deliveries with some ids, or those that a filter selects.

    Raises:
        CannotRun: it asks for nothing, or for too much.
        FilterInvalid: a value of the filter is wrong.
        SetChanged: the set is another than the one that was shown.
    """
    filtered = any(given.values())
    if not ids and filtered == everything:
        raise CannotRun(
            "--all is for no filter at all" if filtered else "which ones? Give ids, a filter, or --all"
        )
    if ids:
        if filtered or everything:
            raise CannotRun("give ids, or a filter, and not both")
        for name, is_given in (("rate", rate), ("canary", canary), ("dry-run", dry_run)):
            if is_given:
                raise CannotRun(f"--{name} is for a filter: deliveries with these ids are changed at once")
        return await _single(context, kind, ids, reason, yes=yes, reset_attempts=reset_attempts)
    wanted = filter_of(given)
    scope, operations = Scope(wanted.organization_id), context.operations
    preview = await operations.preview(scope, kind, wanted, rate=rate)
    _show(preview)
    if dry_run or not preview.count:
        return Outcome(preview=preview), DONE
    if not _agreed(kind, preview.count, yes=yes):
        return FAILED
    action = await operations.change(
        scope, preview.chosen, actor(), reason, reset_attempts=reset_attempts, rate=rate, canary=canary
    )
    action = await _followed(context, scope, action)
    return Outcome(preview=preview, action=action), FAILED if action.state == "stopped" else DONE


async def _single(
    context: CommandContext, kind: Kind, given: Sequence[str], reason: str, *, yes: bool, reset_attempts: bool
) -> int | tuple[Outcome, int]:
    """Change deliveries one by one, at once."""
    ids = list(dict.fromkeys(each.lower() for each in given))
    if not all(map(is_id, ids)):
        raise CannotRun("one of the ids is none; 'flowactions outbox list' shows them")
    if kind == "delete" and not _agreed(kind, len(ids), yes=yes):
        return FAILED
    changed = []
    for each in ids:
        found = await context.operations.one(
            Scope(), kind, each, actor(), reason, reset_attempts=reset_attempts
        )
        one = Changed(id=each, changed=found is not None)
        if found is None:
            hint(f"{each}: {NOT_RESENT if kind == 'resend' else NOT_CHANGED}")
        elif kind == "resend":
            one.resent_as = found
            line(f"{each}: sent again as {found}")
        changed.append(one)
    number = sum(each.changed for each in changed)
    line(f"{number} of {len(ids)} {WORDS[kind][1]}")
    return Outcome(deliveries=changed), DONE if number == len(ids) else FAILED


def _agreed(kind: Kind, number: int, *, yes: bool) -> bool:
    """Ask whether so many deliveries are to be changed."""
    return confirmed(f"{WORDS[kind][0].format(plural(number, 'delivery', 'deliveries'))}?", yes=yes)


def _show(preview: Preview) -> None:
    """Print what a filter selects."""
    line(f"{plural(preview.count, 'delivery', 'deliveries')} at {moment(preview.as_of)}")
    if preview.seconds_to_drain is not None and preview.count:
        line(f"about {span(preview.seconds_to_drain * 1000)} to send them")
    if preview.delivered is not None and preview.delivered.number:
        line(f"left out: {preview.delivered} that are delivered; 'outbox resend' sends such deliveries again")
    for name, shares in (("destination", preview.destinations), ("organization", preview.organizations)):
        if name == "destination" or len(shares) > 1:
            table(shares, {name: lambda each: each.name, "deliveries>": lambda each: f"{each.number:,}"})
    sys.stdout.flush()


def _how_to_stop(action: Action) -> str:
    return f"to stop it: flowactions outbox actions --stop {action.id}"


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
                "no worker is alive: the action waits until one runs; to see how far it is: flowactions outbox actions"
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
        status(
            f"the action continues; to see how far it is: flowactions outbox actions; {_how_to_stop(action)}"
        )
        raise
    return action


async def actions(
    context: CommandContext, organization: str | None, limit: int, stop: str | None
) -> int | tuple[ActionList, int]:
    """List bulk actions, or stop one."""
    if stop is not None:
        stopped = await context.operations.stop(Scope(organization), stop, actor())
        if stopped is None:
            status("flowactions: no action has this id; 'flowactions outbox actions' lists them")
            return FAILED
        _say_end(stopped)
        return ActionList(data=[stopped]), DONE if stopped.state == "stopped" else FAILED
    found = await context.insights.actions(Scope(organization), limit=limit)
    table(
        found,
        {
            "id": lambda each: each.id,
            "kind": lambda each: each.kind,
            "state": lambda each: each.state,
            "done>": lambda each: f"{each.done:,}",
            "of>": lambda each: f"{each.counted:,}",
            "organization": lambda each: each.organization_id or "all",
            "began": lambda each: moment(each.created_at),
            "by": lambda each: each.actor_name,
            "reason": lambda each: each.state_reason or each.reason,
        },
    )
    if not found:
        hint("there is none")
    return ActionList(data=found), DONE
