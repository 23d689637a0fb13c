"""Changes deliveries: shows the selected deliveries, asks, begins the action, and shows its progress until it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from flowactions_plugin.cli.context import CommandContext, actor
from flowactions_plugin.cli.documents import Document
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.options import filter_of, say_times
from flowactions_plugin.cli.output import confirmed, duration, line, moment, status, table, write_json
from flowactions_plugin.clock import is_id
from flowactions_plugin.errors import CannotRun, StorageUnavailable
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.log_text import plural
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


class Changed(Document):
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


class Outcome(Document):
    """The result of a command on many deliveries.

    Attributes:
        preview: the deliveries that the filter has selected; `null` for single deliveries.
        action: the bulk action in its present state; `null` with `--dry-run`, when nothing is selected, and for single deliveries.
        deliveries: single deliveries, and whether each was changed; empty for a filter.
    """

    preview: Preview | None = None
    action: Action | None = None
    deliveries: list[Changed] = msgspec.field(default_factory=list)


class ActionList(Document):
    """Bulk actions.

    Attributes:
        data: the latest first.
    """

    data: list[Action]


class Asked(NamedTuple):
    """The options of a command by their names; ``given`` are those of the filter."""

    kind: Kind
    given: Mapping[str, str | None]
    ids: tuple[str, ...]
    everything: bool
    reason: str
    dry_run: bool
    yes: bool
    as_json: bool
    reset_attempts: bool = False
    rate: float | None = None
    canary: int = 0


async def change(context: CommandContext, asked: Asked) -> int:
    """Execute a command, and return its exit status.

    Raises:
        CannotRun: it asks for nothing, or for too much.
        FilterInvalid: a value of the filter is wrong.
        SetChanged: the set is another than the one that was shown.
    """
    filtered = any(asked.given.values())
    if asked.ids:
        if filtered or asked.everything:
            raise CannotRun("give ids, or a filter, and not both")
        of_filter = {"rate": asked.rate is not None, "canary": asked.canary > 0, "dry-run": asked.dry_run}
        ignored = [name for name, is_given in of_filter.items() if is_given]
        if ignored:
            raise CannotRun(f"--{ignored[0]} is for a filter: deliveries with these ids are changed at once")
    elif filtered == asked.everything:
        raise CannotRun(
            "--all is for no filter at all" if filtered else "which ones? Give ids, a filter, or --all"
        )
    return await (_single if asked.ids else _many)(context, asked)


async def _single(context: CommandContext, asked: Asked) -> int:
    """Change deliveries one by one, at once."""
    ids = list(dict.fromkeys(each.lower() for each in asked.ids))
    if not all(map(is_id, ids)):
        raise CannotRun("one of the ids is none; 'flowactions outbox list' shows them")
    done = WORDS[asked.kind][1]
    if asked.kind == "delete" and not _agreed(asked, len(ids)):
        return FAILED
    changed = []
    for each in ids:
        found_id = await context.operations.one(
            Scope(), asked.kind, each, actor(), asked.reason, reset_attempts=asked.reset_attempts
        )
        new_id = found_id if asked.kind == "resend" and found_id is not None else msgspec.UNSET
        changed.append(Changed(id=each, changed=found_id is not None, resent_as=new_id))
    number = sum(each.changed for each in changed)
    if asked.as_json:
        write_json(Outcome(deliveries=changed))
    else:
        for one in changed:
            if one.resent_as:
                line(f"{one.id}: sent again as {one.resent_as}")
            elif not one.changed:
                status(f"{one.id}: {NOT_RESENT if asked.kind == 'resend' else NOT_CHANGED}")
        line(f"{number} of {len(ids)} {done}")
    return DONE if number == len(ids) else FAILED


async def _many(context: CommandContext, asked: Asked) -> int:
    """Begin a bulk action on what a filter selects, and follow it where a worker can carry it out."""
    wanted = filter_of(asked.given)
    scope, operations = Scope(wanted.organization_id), context.operations
    preview = await operations.preview(scope, asked.kind, wanted, rate=asked.rate)
    if not asked.as_json:
        say_times(wanted)
        _show(preview)
    if asked.dry_run or not preview.count:
        if asked.as_json:
            write_json(Outcome(preview=preview))
        return DONE
    if not _agreed(asked, preview.count):
        return FAILED
    action = await operations.change(
        scope,
        preview.chosen,
        actor(),
        asked.reason,
        reset_attempts=asked.reset_attempts,
        rate=asked.rate,
        canary=asked.canary,
    )
    if action.finished_at is None:
        begins = f" begins at {moment(action.starts_at)};" if action.state == "waiting" else ""
        status(f"action {action.id}{begins} to stop it: flowactions outbox stop {action.id}")
        if any(worker.state == "alive" for worker in await context.insights.workers()):
            action = await _follow(context.insights, scope, action)
        else:
            status(
                "no worker is alive: the action waits until one runs; to see how far it is: flowactions outbox actions"
            )
    if action.finished_at is not None:
        say_end(action)
    if asked.as_json:
        write_json(Outcome(preview=preview, action=action))
    return FAILED if action.state == "stopped" else DONE


def _agreed(asked: Asked, number: int) -> bool:
    """Ask whether so many deliveries are to be changed."""
    question = WORDS[asked.kind][0].format(plural(number, "delivery", "deliveries"))
    return confirmed(f"{question}?", yes=asked.yes)


def _show(preview: Preview) -> None:
    """Print what a filter selects."""
    line(f"{plural(preview.count, 'delivery', 'deliveries')} at {moment(preview.as_of)}")
    if preview.seconds_to_drain is not None and preview.count:
        line(f"about {duration(preview.seconds_to_drain)} to send them")
    if preview.delivered is not None and preview.delivered.number:
        line(f"left out: {preview.delivered} that are delivered; 'outbox resend' sends such deliveries again")
    for name, shares in (("destination", preview.destinations), ("organization", preview.organizations)):
        if shares and (name == "destination" or len(shares) > 1):
            table(shares, {name: lambda each: each.name, "deliveries>": lambda each: f"{each.number:,}"})
    sys.stdout.flush()


def say_end(action: Action) -> None:
    """Print the result of an action."""
    reason = f": {action.state_reason}" if action.state_reason else ""
    status(f"{action.state}{reason}; {action.done:,} of {action.counted:,} {WORDS[action.kind][1]}")


async def _follow(insights: Insights, scope: Scope, action: Action) -> Action:
    """Show the progress of an action until it has ended; wait for a database that is away meanwhile.

    When the command is interrupted, the action continues: workers execute it. The command says how to see or stop it.
    """
    said, said_at, before = "", 0.0, action.done
    try:
        while action.finished_at is None:
            now = time.monotonic()
            if action.state != said or now >= said_at + LINE_SECONDS:
                rate = (action.done - before) / (now - said_at)
                pace = (
                    f", {rate:,.1f}/s, {duration((action.counted - action.done) / rate)} left" if rate else ""
                )
                why = f" ({action.state_reason})" if action.state_reason else ""
                status(f"{action.state}{why}: {action.done:,} of {action.counted:,}{pace}")
                said, said_at, before = action.state, now, action.done
            await asyncio.sleep(POLL_SECONDS)
            try:
                action = await insights.action(scope, action.id) or action
            except StorageUnavailable as exc:
                status(f"waiting for the database: {exc}")
                await asyncio.sleep(RETRY_SECONDS)
    except asyncio.CancelledError:
        status(
            "the action continues; to see how far it is: flowactions outbox actions; "
            f"to stop it: flowactions outbox stop {action.id}"
        )
        raise
    return action
