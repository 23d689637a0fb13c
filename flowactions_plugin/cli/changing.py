"""Changes deliveries: shows the selected deliveries, asks, begins the action, and shows its progress until it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from flowactions_plugin.cli.context import CommandContext, actor, opened
from flowactions_plugin.cli.documents import Document
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.options import filter_of, say_times
from flowactions_plugin.cli.output import confirmed, duration, line, moment, status, table, write_json
from flowactions_plugin.clock import is_id
from flowactions_plugin.errors import CannotRun, StorageUnavailable
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Action, Kind
from flowactions_plugin.insights.status import QueueStatus
from flowactions_plugin.log_text import plural
from flowactions_plugin.operations.bulk import Preview, Share
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operations.purge import Purged
from flowactions_plugin.operations.resend import could_change
from flowactions_plugin.operators.scope import Scope

VERBS: Final = {
    "retry": "Make {} due now",
    "cancel": "End {} without success",
    "delete": "Remove {} for ever",
    "resend": "Send {} again",
}
DONE_VERBS: Final = {
    "retry": "due now",
    "cancel": "cancelled",
    "delete": "removed",
    "resend": "queued again",
}

NOT_CHANGED: Final = {
    "resend": "not delivered, or retention or a purge has removed it: only what is kept can be sent again",
}

POLL_SECONDS: Final = 0.5
LINE_SECONDS: Final = 5.0
"""How often a line says how far an action is."""

WINDOW_SECONDS: Final = 30.0
"""Over how long the rate is measured."""

RETRY_SECONDS: Final = 5.0


class Changed(Document):
    """A single delivery.

    Attributes:
        id: id of the delivery.
        changed: whether the delivery was changed; its state may not allow it.
        could: with `--dry-run`: whether it would be changed; missing without.
        resent_as: for `outbox resend`: id of the new delivery; missing for other commands, and if nothing was
            sent.
    """

    id: str
    changed: bool
    could: bool | msgspec.UnsetType = msgspec.UNSET
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


class Purge(Document):
    """The rows of an organization: counted or deleted.

    Attributes:
        organization: its id.
        dry: whether it was counted only.
        counts: how many of each kind.
        token_revoked: whether the token of a chat connection could be revoked at the provider; `null` without a connection, or
            when it was counted only.
    """

    organization: str
    dry: bool
    counts: Purged
    token_revoked: bool | None = None


class ChangeRequest(NamedTuple):
    """The options of a command, by their names.

    Attributes:
        kind: what is done.
        given: the options of the filter.
        ids: single deliveries; empty: those of the filter.
    """

    kind: Kind
    given: Mapping[str, str | None]
    everything: bool
    reason: str
    dry_run: bool
    yes: bool
    as_json: bool
    ids: tuple[str, ...] = ()
    reset_attempts: bool = False
    rate: float | None = None
    canary: int = 0


async def change(host: str | None, request: ChangeRequest) -> int:
    """Execute a command, and return its exit status.

    Raises:
        CannotRun: it asks for nothing, or for too much.
        FilterInvalid: a value of the filter is wrong.
        SetChanged: the set is another than the one that was shown.
    """
    filtered = any(request.given.values())
    if request.ids and (filtered or request.everything):
        raise CannotRun("give ids, or a filter, and not both")
    of_bulk = {"rate": request.rate is not None, "canary": request.canary > 0}
    ignored = [name for name, is_given in of_bulk.items() if is_given]
    if request.ids and ignored:
        raise CannotRun(f"--{ignored[0]} is for a filter: deliveries with these ids are changed at once")
    if not request.ids and filtered == request.everything:
        raise CannotRun(
            "--all is for no filter at all" if filtered else "which ones? Give ids, a filter, or --all"
        )
    async with opened(host) as context:
        return await (_single if request.ids else _many)(context, request)


async def _single(context: CommandContext, request: ChangeRequest) -> int:
    """Change deliveries one by one, at once."""
    ids = list(dict.fromkeys(each.lower() for each in request.ids))
    if not all(map(is_id, ids)):
        raise CannotRun("one of the ids is none; 'flowactions outbox list' shows them")
    if request.dry_run:
        ready = await could_change(context.database, request.kind, ids)
        if request.as_json:
            write_json(
                Outcome(deliveries=[Changed(id=each, changed=False, could=each in ready) for each in ids])
            )
        else:
            line(f"{len(ready)} of {len(ids)} would be {DONE_VERBS[request.kind]}")
        return DONE
    if request.kind == "delete" and not _agreed(request, len(ids)):
        return FAILED
    operations = Operations(context.database)
    changed = [await _change_one(operations, request, each) for each in ids]
    done = sum(each.changed for each in changed)
    if request.as_json:
        write_json(Outcome(deliveries=changed))
    else:
        for each in changed:
            if each.resent_as:
                line(f"{each.id}: sent again as {each.resent_as}")
            elif not each.changed:
                status(
                    f"{each.id}: {NOT_CHANGED.get(request.kind, 'no delivery has this id, or its state does not allow this')}"
                )
        line(f"{done} of {len(ids)} {DONE_VERBS[request.kind]}")
    return DONE if done == len(ids) else FAILED


async def _change_one(operations: Operations, request: ChangeRequest, delivery_id: str) -> Changed:
    done = await operations.one(
        Scope(), request.kind, delivery_id, actor(), request.reason, reset_attempts=request.reset_attempts
    )
    new_id = done if request.kind == "resend" and done is not None else msgspec.UNSET
    return Changed(id=delivery_id, changed=done is not None, resent_as=new_id)


async def _many(context: CommandContext, request: ChangeRequest) -> int:
    """Begin a bulk action on what a filter selects."""
    wanted = filter_of(request.given)
    scope = Scope(wanted.organization_id)
    operations = Operations(context.database)
    preview = await operations.preview(scope, request.kind, wanted, rate=request.rate)
    if not request.as_json:
        say_times(wanted)
        _show(preview)
    if request.dry_run or not preview.count:
        if request.as_json:
            write_json(Outcome(preview=preview))
        return DONE
    if not _agreed(request, preview.count):
        return FAILED
    action = await operations.change(
        scope,
        preview.chosen,
        actor(),
        request.reason,
        reset_attempts=request.reset_attempts,
        rate=request.rate,
        canary=request.canary,
    )
    action = await _said(context, scope, action)
    if request.as_json:
        write_json(Outcome(preview=preview, action=action))
    return FAILED if action.state == "stopped" else DONE


async def _said(context: CommandContext, scope: Scope, action: Action) -> Action:
    """Print what became of an action that was ordered, or how to stop it, and follow it where a worker can carry it out."""
    if action.finished_at is not None:
        say_end(action)
        return action
    begins = f" begins at {moment(action.starts_at)};" if action.state == "waiting" else ""
    status(f"action {action.id}{begins} to stop it: flowactions outbox stop {action.id}")
    workers = await QueueStatus.of(context.database, context.settings).workers()
    if not any(worker.state == "alive" for worker in workers):
        status(
            "no worker is alive: the action waits until one runs; to see how far it is: flowactions outbox actions"
        )
        return action
    return await follow(Insights(context.database), scope, action)


def _agreed(request: ChangeRequest, number: int) -> bool:
    """Ask whether so many deliveries are to be changed."""
    return confirmed(
        f"{VERBS[request.kind].format(plural(number, 'delivery', 'deliveries'))}?", yes=request.yes
    )


def _show(preview: Preview) -> None:
    """Print what a filter selects."""
    line(f"{plural(preview.count, 'delivery', 'deliveries')} at {moment(preview.as_of)}")
    if preview.seconds_to_drain is not None and preview.count:
        line(f"about {duration(preview.seconds_to_drain)} to send them")
    if preview.delivered is not None and preview.delivered.number:
        line(f"left out: {preview.delivered} that are delivered; 'outbox resend' sends such deliveries again")
    if preview.destinations:
        _show_shares("destination", preview.destinations)
    if len(preview.organizations) > 1:
        _show_shares("organization", preview.organizations)
    sys.stdout.flush()


def _show_shares(of: str, shares: Sequence[Share]) -> None:
    table(shares, {of: lambda each: each.name, "deliveries>": lambda each: f"{each.number:,}"})


def say_end(action: Action) -> None:
    """Print the result of an action."""
    reason = f": {action.state_reason}" if action.state_reason else ""
    status(f"{action.state}{reason}; {action.done:,} of {action.counted:,} {DONE_VERBS[action.kind]}")


class Pace:
    """The rate of what is done, over the last half minute.

    Args:
        total: how much there is to do.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, done: int) -> None:
        """Note how much was done at a time, monotonic seconds."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()

    def __str__(self) -> str:
        (began, before), (now, done) = self._seen[0], self._seen[-1]
        rate = max(0.0, (done - before) / (now - began)) if now > began else 0.0
        left = f", {duration((self._total - done) / rate)} left" if rate else ""
        return f"{rate:,.1f}/s{left}"


async def follow(insights: Insights, scope: Scope, action: Action) -> Action:
    """Show the progress of an action until it has ended; wait for a database that is away meanwhile.

    When the command is interrupted, the action continues: workers execute it. The command says how to see or stop it.
    """
    pace, said_at, said = Pace(action.counted), 0.0, ""
    try:
        while True:
            now = time.monotonic()
            pace.note(now, action.done)
            if now >= said_at + LINE_SECONDS or action.state != said:
                said_at, said = now, action.state
                why = f" ({action.state_reason})" if action.state_reason else ""
                status(f"{action.state}{why}: {action.done:,} of {action.counted:,}, {pace}")
            if action.finished_at is not None:
                break
            await asyncio.sleep(POLL_SECONDS)
            action = await _read(insights, scope, action)
    except asyncio.CancelledError:
        status(
            "the action continues; to see how far it is: flowactions outbox actions; "
            f"to stop it: flowactions outbox stop {action.id}"
        )
        raise
    say_end(action)
    return action


async def _read(insights: Insights, scope: Scope, action: Action) -> Action:
    while True:
        try:
            return await insights.action(scope, action.id) or action
        except StorageUnavailable as exc:
            status(f"waiting for the database: {exc}")
            await asyncio.sleep(RETRY_SECONDS)
