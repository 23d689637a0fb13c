"""The commands that change deliveries: single ones at once, those of a filter as a bulk action that workers carry out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from flowactions_plugin.cli.frame import DONE, FAILED, TABLES_EXITS, command
from flowactions_plugin.cli.options import (
    filter_options,
    host_option,
    organization_option,
    reason_option,
    yes_option,
)
from flowactions_plugin.cli.output import moment, status, table, write_json

if TYPE_CHECKING:
    from flowactions_plugin.insights.results import Kind

Function = TypeVar("Function", bound=Callable[..., Any])

EXITS: Final = {
    **TABLES_EXITS,
    DONE: "done; or ordered, where no worker is alive; or nothing meets the filter",
    FAILED: "it failed; the action was stopped; or a single delivery was not in a state for it",
}


def _options(function: Function) -> Function:
    """Add the options of every command that changes deliveries."""
    for option in reversed(
        (
            host_option(),
            filter_options(without={"status", "id"}),
            click.option("--all", "everything", is_flag=True, help="Without any filter: all of them."),
            reason_option,
            click.option(
                "--dry-run", is_flag=True, help="Change nothing; show the number and the destinations."
            ),
            yes_option,
        )
    ):
        function = option(function)
    return function


_ids = click.argument("ids", nargs=-1, metavar="[ID]...")
_reset = click.option(
    "--reset",
    "reset_attempts",
    is_flag=True,
    help="Give each delivery all its attempts again; without it, one more attempt.",
)


_rate = click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="At most this many deliveries a second.",
)
_canary = click.option(
    "--canary",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Send this many first, and stop if more than a tenth of their first attempts fail.",
)


@command("retry", document="cli.changing:Outcome", exits=EXITS)
@_ids
@_reset
@_rate
@_canary
@_options
async def retry(host: str | None, **options: Any) -> int:
    """Retry dead deliveries: those with these ids now, or those that match a filter, ten seconds later.

    Workers retry those of a filter, so it continues if this command or a worker is killed. To see the progress, use 'outbox
    actions'. To stop it, use 'outbox stop': before it has begun, nothing is changed.
    """
    return await _change(host, "retry", options)


@command("resend", document="cli.changing:Outcome", exits=EXITS)
@_ids
@_rate
@_canary
@_options
async def resend(host: str | None, **options: Any) -> int:
    """Send delivered webhooks again: those with these ids, or those that match a filter with --from.

    Each is sent as a new delivery with the same event id, headers and body, signed with the present secret. Receivers that
    dedupe by event id ignore events that they have already processed. Filters need --from, --event-id or --key.
    """
    return await _change(host, "resend", options)


@command("cancel", document="cli.changing:Outcome", exits=EXITS)
@_ids
@_options
async def cancel(host: str | None, **options: Any) -> int:
    """Cancel deliveries that wait for an attempt, at once: those with these ids, or those that match a filter.

    They are then dead; 'outbox retry --reset' sends them after all. A delivery that is being sent is delivered if its receiver
    answers so, and is not tried again otherwise.
    """
    return await _change(host, "cancel", options)


@command("delete", document="cli.changing:Outcome", exits=EXITS)
@_ids
@_options
async def delete(host: str | None, **options: Any) -> int:
    """Delete dead deliveries with their attempts: those with these ids, or those that match a filter.

    Those of a filter are deleted ten seconds later, unless 'outbox stop' stops it. They cannot be restored.
    """
    return await _change(host, "delete", options)


@command("actions", document="cli.changing:ActionList", exits=TABLES_EXITS)
@host_option()
@organization_option("Of this organization only.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="The most that are shown."
)
async def actions(host: str | None, organization: str | None, limit: int, as_json: bool) -> int:
    """List bulk actions, the latest first."""
    from flowactions_plugin.cli.changing import ActionList
    from flowactions_plugin.cli.context import opened
    from flowactions_plugin.insights.port import Insights
    from flowactions_plugin.operators.scope import Scope

    async with opened(host) as context:
        found = await Insights(context.database).actions(Scope(organization), limit=limit)
    if as_json:
        write_json(ActionList(data=list(found)))
    elif not found:
        status("there is none")
    else:
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
    return DONE


@command(
    "stop",
    document="cli.changing:Outcome",
    exits={**TABLES_EXITS, FAILED: "no action has this id, or it has ended; or it failed"},
)
@click.argument("action_id", metavar="ACTION")
@host_option()
async def stop(action_id: str, host: str | None, as_json: bool) -> int:
    """Stop a bulk action; deliveries that it has already changed stay changed. Before it has begun, it changes none."""
    from flowactions_plugin.cli.changing import Outcome, say_end
    from flowactions_plugin.cli.context import actor, opened
    from flowactions_plugin.operations.port import Operations
    from flowactions_plugin.operators.scope import Scope

    async with opened(host) as context:
        action = await Operations(context.database).stop(Scope(), action_id, actor())
    if action is None:
        status("flowactions: no action has this id; 'flowactions outbox actions' lists them")
        return FAILED
    if as_json:
        write_json(Outcome(action=action))
    say_end(action)
    return DONE if action.state == "stopped" else FAILED


async def _change(host: str | None, kind: Kind, options: dict[str, Any]) -> int:
    """Carry out a command whose options are those of `ChangeRequest` and of a filter."""
    from flowactions_plugin.cli.changing import ChangeRequest, change

    own = {name: options.pop(name) for name in ChangeRequest._fields if name in options}
    return await change(host, ChangeRequest(kind=kind, given=options, **own))
