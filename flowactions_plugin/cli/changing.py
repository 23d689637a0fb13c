"""Changes deliveries: shows what would be changed, asks, begins the action, and follows it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from flowactions_plugin.bulk.actions import Actions
from flowactions_plugin.bulk.results import Action, Preview
from flowactions_plugin.cli.context import CommandContext, actor, opened
from flowactions_plugin.cli.following import follow
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.options import filter_of, is_given
from flowactions_plugin.cli.output import confirmed, duration, line, moment, status, table, write_json
from flowactions_plugin.cli.results import ActionList, Changed, Outcome
from flowactions_plugin.clock import is_id
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.errors import CannotRun
from flowactions_plugin.health.status import QueueStatus
from flowactions_plugin.operators.scope import Scope

if TYPE_CHECKING:
    from flowactions_plugin.cli.bulk import ChangeRequest

VERBS: Final = {
    "retry": "make {} due now",
    "replay": "make {} due again",
    "cancel": "end {} without success",
    "delete": "remove {} for ever",
}
DONE_VERBS: Final = {"retry": "due now", "replay": "due now", "cancel": "cancelled", "delete": "removed"}


async def change(host: str | None, request: ChangeRequest) -> int:
    """Carry out a command; returns the exit status.

    Raises:
        CannotRun: it asks for nothing, or for too much.
        FilterInvalid: a value of the filter is wrong.
        SetChanged: the set is another than the one that was shown.
    """
    if request.ids and (is_given(request.given) or request.everything):
        raise CannotRun("give ids, or a filter, and not both")
    if not request.ids and is_given(request.given) == request.everything:
        raise CannotRun(
            "--all is for no filter at all"
            if request.everything
            else "which ones? Give ids, a filter, or --all"
        )
    async with opened(host) as context:
        if request.ids:
            return await _single(context, request)
        return await _many(context, request)


async def _single(context: CommandContext, request: ChangeRequest) -> int:
    """Change deliveries one by one, at once."""
    ids = list(dict.fromkeys(each.lower() for each in request.ids))
    if not all(map(is_id, ids)):
        raise CannotRun("one of the ids is none; 'flowactions outbox list' shows them")
    if request.expect not in {None, len(ids)}:
        raise CannotRun(f"there are {len(ids)} ids, and not {request.expect}")
    if request.dry_run:
        queries = OperatorQueries.of(context.database, context.settings)
        found = [each for each in ids if await queries.delivery(Scope(), each) is not None]
        return _report(
            request, [Changed(id=each, changed=False) for each in ids], f"{len(found)} of {len(ids)} exist"
        )
    if request.kind == "delete" and not confirmed(f"{_question(request.kind, len(ids))}?", yes=request.yes):
        status("nothing was done")
        return FAILED
    made = Actions(context.database)
    changed = [
        Changed(
            id=each,
            changed=await made.one(
                Scope(), request.kind, each, actor(), request.reason, reset_attempts=request.reset_attempts
            ),
        )
        for each in ids
    ]
    done = sum(each.changed for each in changed)
    _report(request, changed, f"{done} of {len(ids)} {DONE_VERBS[request.kind]}")
    return DONE if done == len(ids) else FAILED


def _report(request: ChangeRequest, changed: list[Changed], said: str) -> int:
    if request.as_json:
        write_json(Outcome(deliveries=changed))
    else:
        for each in changed:
            if not request.dry_run and not each.changed:
                status(f"{each.id}: there is none, or it is not in a state for it")
        line(said)
    return DONE


async def _many(context: CommandContext, request: ChangeRequest) -> int:
    """Begin a bulk action on what a filter selects."""
    wanted = filter_of(request.given)
    scope = Scope(wanted.organization_id)
    made = Actions(context.database)
    preview = await made.preview(scope, request.kind, wanted, rate=request.rate)
    if not request.as_json:
        _show(preview)
    if request.expect not in {None, preview.count}:
        status(f"flowactions: there are {preview.count}, and not {request.expect}: nothing was done")
        return FAILED
    if request.dry_run or not preview.count:
        return _ended(request.as_json, Outcome(preview=preview))
    if not confirmed(f"{_question(request.kind, preview.count)}?", yes=request.yes):
        status("nothing was done")
        return FAILED
    action = await made.begin(
        scope,
        request.kind,
        preview.token,
        actor(),
        request.reason,
        reset_attempts=request.reset_attempts,
        rate=request.rate,
        canary=request.canary,
        undo_seconds=context.settings.undo_seconds if request.undo_seconds is None else request.undo_seconds,
    )
    status(f"action {action.id}; until {moment(action.starts_at)}: flowactions outbox undo {action.id}")
    if not request.detach:
        await _warn_without_workers(context)
        action = await follow(made, scope, action)
        _say_end(action)
    _ended(request.as_json, Outcome(preview=preview, action=action))
    return FAILED if action.state in {"stopped", "undone"} else DONE


def _question(kind: str, number: int) -> str:
    what = "one delivery" if number == 1 else f"{number:,} deliveries"
    text = VERBS[kind].format(what)
    return text[0].upper() + text[1:]


def _show(preview: Preview) -> None:
    """Print what a filter selects."""
    line(f"{preview.count:,} deliveries at {moment(preview.as_of)}")
    if preview.seconds_to_drain is not None and preview.count:
        line(f"about {duration(preview.seconds_to_drain)} to send them")
    if preview.destinations:
        table(
            ("destination", "deliveries>"), ((each.name, f"{each.number:,}") for each in preview.destinations)
        )
    if len(preview.organizations) > 1:
        table(
            ("organization", "deliveries>"), ((each.name, f"{each.number:,}") for each in preview.organizations)
        )
    sys.stdout.flush()


async def _warn_without_workers(context: CommandContext) -> None:
    workers = await QueueStatus.of(context.database, context.settings).workers()
    if not any(worker.state == "alive" for worker in workers):
        status("no worker is alive: the action waits until one runs")


def _say_end(action: Action) -> None:
    reason = f": {action.state_reason}" if action.state_reason else ""
    status(f"{action.state}{reason}; {action.done:,} of {action.counted:,} {DONE_VERBS[action.kind]}")


def _ended(as_json: bool, outcome: Outcome) -> int:
    if as_json:
        write_json(outcome)
    return DONE


async def follow_again(host: str | None, action_id: str, as_json: bool) -> int:
    """Show how an action goes on."""
    async with opened(host) as context:
        made = Actions(context.database)
        action = await made.get(Scope(), action_id) if is_id(action_id) else None
        if action is None:
            return _none()
        action = await follow(made, Scope(), action)
    _say_end(action)
    _ended(as_json, Outcome(action=action))
    return FAILED if action.state in {"stopped", "undone"} else DONE


async def take_back(host: str | None, action_id: str, as_json: bool) -> int:
    """Undo an action."""
    async with opened(host) as context:
        made = Actions(context.database)
        action = await made.undo(Scope(), action_id, actor()) if is_id(action_id) else None
    if action is None:
        return _none()
    _ended(as_json, Outcome(action=action))
    if action.state == "undone":
        status("undone: everything is as it was")
        return DONE
    status(f"flowactions: it is {action.state} already: 'flowactions outbox stop {action.id}' ends it")
    return FAILED


async def end(host: str | None, action_id: str, as_json: bool) -> int:
    """Stop an action."""
    async with opened(host) as context:
        made = Actions(context.database)
        action = await made.stop(Scope(), action_id, actor()) if is_id(action_id) else None
    if action is None:
        return _none()
    _ended(as_json, Outcome(action=action))
    _say_end(action)
    return DONE if action.state in {"stopped", "undone"} else FAILED


def _none() -> int:
    status("flowactions: there is no such action; 'flowactions outbox actions' lists them")
    return FAILED


async def list_actions(host: str | None, organization: str | None, limit: int, as_json: bool) -> int:
    """List actions."""
    async with opened(host) as context:
        found = await Actions(context.database).list(Scope(organization), limit=limit)
    if as_json:
        write_json(ActionList(data=list(found)))
        return DONE
    if not found:
        status("there is none")
        return DONE
    table(
        ("id", "kind", "state", "done>", "of>", "organization", "began", "by", "reason"),
        (
            (
                each.id,
                each.kind,
                each.state,
                f"{each.done:,}",
                f"{each.counted:,}",
                each.organization_id or "all",
                moment(each.created_at),
                each.actor_name,
                each.state_reason or each.reason,
            )
            for each in found
        ),
    )
    return DONE
