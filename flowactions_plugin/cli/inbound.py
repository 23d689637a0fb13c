"""``flowactions inbound``: the events of the auth provider and of the chat provider."""

from __future__ import annotations

import click

from flowactions_plugin.cli.frame import DONE, FAILED, SETTINGS, TABLES_EXITS, command
from flowactions_plugin.cli.options import WORDS, host_option
from flowactions_plugin.cli.output import moment, status, table, write_json


@click.group("inbound", context_settings=SETTINGS, no_args_is_help=False)
def inbound() -> None:
    """List inbound events, which belong to no organization."""


@command(
    "list",
    document="deliveries.results:InboundPage",
    exits={**TABLES_EXITS, FAILED: "it failed, for example because the database does not answer"},
)
@host_option()
@click.option("--id", "event_id", type=WORDS, metavar="ID", help="The event with this id of its provider.")
@click.option(
    "--result",
    type=WORDS,
    metavar="RESULT",
    help="processed, repeated, acknowledged, refused, invalid or failed.",
)
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many at the most."
)
@click.option(
    "--cursor",
    type=WORDS,
    metavar="TEXT",
    help="Continue after a page; the last line of each page names its cursor.",
)
async def list_inbound(
    host: str | None, event_id: str | None, result: str | None, limit: int, cursor: str | None, as_json: bool
) -> int:
    """List inbound events with their answers, the latest first.

    Each event is processed once. If it is received again, it is only acknowledged. Each process lists at most
    20 requests an hour that are refused for the same reason; the next row has the number of the others.
    """
    from flowactions_plugin.cli.context import opened
    from flowactions_plugin.deliveries.inbound_queries import read_inbound
    from flowactions_plugin.deliveries.operator_queries import OperatorQueries
    from flowactions_plugin.operators.scope import Scope

    wanted = read_inbound({"id": event_id, "result": result})
    async with opened(host) as context:
        queries = OperatorQueries.of(context.database, context.settings)
        page = await queries.inbound(Scope(), wanted, cursor, limit)
    if as_json:
        write_json(page)
        return DONE
    if page.rows:
        table(
            page.rows,
            {
                "received": lambda row: moment(row.received_at),
                "provider": lambda row: row.provider,
                "type": lambda row: row.event_type,
                "event id": lambda row: row.event_id,
                "result": lambda row: row.result,
                "answered>": lambda row: row.status_code,
                "repeats>": lambda row: row.repeats or "",
                "last repeat": lambda row: moment(row.repeated_at),
                "reason": lambda row: row.reason,
                "not listed>": lambda row: row.more or "",
            },
        )
    else:
        status("no inbound event matches")
    if page.next_cursor is not None:
        status(f"more: --cursor {page.next_cursor}")
    return DONE


inbound.add_command(list_inbound)
