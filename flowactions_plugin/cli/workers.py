"""``flowactions workers``: the processes that deliver."""

from __future__ import annotations

from flowactions_plugin.cli.frame import DONE, FAILED, TABLES_EXITS, command
from flowactions_plugin.cli.options import host_option


@command(
    "workers", document="results:Workers", exits={**TABLES_EXITS, FAILED: "no worker is alive; or it failed"}
)
@host_option()
async def workers(host: str | None, as_json: bool) -> int:
    """List the processes that deliver: workers, and hosts that deliver themselves."""
    from flowactions_plugin.cli.moments import moment
    from flowactions_plugin.cli.output import status, table, write_json
    from flowactions_plugin.cli.places import opened
    from flowactions_plugin.cli.results import Workers
    from flowactions_plugin.operate.queries import OperatorQueries

    async with opened(host) as place:
        found = list(await OperatorQueries.of(place.database, place.settings).workers())
    alive = any(worker.state == "alive" for worker in found)
    if as_json:
        write_json(Workers(data=found))
    elif found:
        columns = (
            "name",
            "state",
            "version",
            "machine",
            "pid>",
            "mode",
            "in flight>",
            "slots>",
            "started",
            "seen",
            "claimed",
        )
        table(
            columns,
            (
                (
                    each.name,
                    each.state,
                    each.version,
                    each.host_name,
                    each.pid,
                    each.mode,
                    each.in_flight,
                    each.slots,
                    moment(each.started_at),
                    moment(each.last_seen_at),
                    moment(each.last_claim_at),
                )
                for each in found
            ),
        )
    if not alive:
        status("no worker is alive: start the host, or 'flowactions worker' where it leaves delivering to it")
    return DONE if alive else FAILED
