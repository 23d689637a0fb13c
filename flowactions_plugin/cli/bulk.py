"""The commands that change deliveries: single ones at once, those of a filter as a bulk action that workers carry out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from flowactions_plugin.cli.frame import DONE, FAILED, Command, command
from flowactions_plugin.cli.options import (
    filter_options,
    limit_option,
    organization_option,
    reason_option,
    yes_option,
)
from flowactions_plugin.cli.output import moment, status, table, write_json

if TYPE_CHECKING:
    from flowactions_plugin.cli.context import CommandContext
    from flowactions_plugin.insights.results import Kind

EXITS: Final = {
    DONE: "done; or ordered, where no worker is alive; or nothing meets the filter",
    FAILED: "it failed; the action was stopped; or a single delivery was not in a state for it",
}

_OPTIONS: Final = (
    filter_options(without={"status", "id"}),
    click.option("--all", "everything", is_flag=True, help="Without any filter: all of them."),
    reason_option,
    click.option("--dry-run", is_flag=True, help="Change nothing; show the number and the destinations."),
    yes_option,
)
_RESET: Final = click.option(
    "--reset",
    "reset_attempts",
    is_flag=True,
    help="Give each delivery all its attempts again; without it, one more attempt.",
)
_RATE: Final = click.option(
    "--rate",
    type=click.FloatRange(min=0, min_open=True),
    metavar="N",
    help="At most this many deliveries a second.",
)
_CANARY: Final = click.option(
    "--canary",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Send this many first, and stop if more than a tenth of their first attempts fail.",
)


def _changing(kind: Kind, text: str, *own: Callable[[Any], Any]) -> Command:
    """Declare a command that changes deliveries, with its help and its own options."""

    async def changed(context: CommandContext, **options: Any) -> int:
        from flowactions_plugin.cli.changing import Asked, change

        asked = {name: options.pop(name) for name in Asked._fields if name in options}
        return await change(context, Asked(kind=kind, given=options, **asked))

    found: Any = changed
    found.__doc__ = text
    for option in reversed((click.argument("ids", nargs=-1, metavar="[ID]..."), *own, *_OPTIONS)):
        found = option(found)
    return command(kind, document="cli.changing:Outcome", exits=EXITS, opens=True)(found)


retry: Final = _changing(
    "retry",
    """Retry dead deliveries: those with these ids now, or those that match a filter, ten seconds later.

    Workers retry those of a filter, so it continues if this command or a worker is killed. To see the progress, use 'outbox
    actions'. To stop it, use 'outbox stop': before it has begun, nothing is changed.
    """,
    _RESET,
    _RATE,
    _CANARY,
)
resend: Final = _changing(
    "resend",
    """Send delivered webhooks again: those with these ids, or those that match a filter with --from.

    Each is sent as a new delivery with the same event id, headers and body, signed with the present secret. Receivers that
    dedupe by event id ignore events that they have already processed. Filters need --from, --event-id or --key.
    """,
    _RATE,
    _CANARY,
)
cancel: Final = _changing(
    "cancel",
    """Cancel deliveries that wait for an attempt, at once: those with these ids, or those that match a filter.

    They are then dead; 'outbox retry --reset' sends them after all. A delivery that is being sent is delivered if its receiver
    answers so, and is not tried again otherwise.
    """,
)
delete: Final = _changing(
    "delete",
    """Delete dead deliveries with their attempts: those with these ids, or those that match a filter.

    Those of a filter are deleted ten seconds later, unless 'outbox stop' stops it. They cannot be restored.
    """,
)


@command("actions", document="cli.changing:ActionList", opens=True)
@organization_option("Of this organization.")
@limit_option
async def actions(context: CommandContext, organization: str | None, limit: int, as_json: bool) -> int:
    """List bulk actions, the latest first."""
    from flowactions_plugin.cli.changing import ActionList
    from flowactions_plugin.operators.scope import Scope

    found = await context.insights.actions(Scope(organization), limit=limit)
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
    exits={FAILED: "no action has this id, or it has ended; or it failed"},
    opens=True,
)
@click.argument("action_id", metavar="ACTION")
async def stop(context: CommandContext, action_id: str, as_json: bool) -> int:
    """Stop a bulk action; deliveries that it has already changed stay changed. Before it has begun, it changes none."""
    from flowactions_plugin.cli.changing import Outcome, say_end
    from flowactions_plugin.cli.context import actor
    from flowactions_plugin.operators.scope import Scope

    action = await context.operations.stop(Scope(), action_id, actor())
    if action is None:
        status("flowactions: no action has this id; 'flowactions outbox actions' lists them")
        return FAILED
    if as_json:
        write_json(Outcome(action=action))
    say_end(action)
    return DONE if action.state == "stopped" else FAILED
