"""``flowactions migrate``: brings the tables to this release's revision."""

from __future__ import annotations

import click

from flowactions_plugin.cli.frame import DONE, FAILED, NEWER_TABLES, command
from flowactions_plugin.cli.options import host_option


@command(
    "migrate",
    document="Tables",
    exits={
        DONE: "the tables are of this release",
        FAILED: "it failed; or, with --check, there is something to do",
        NEWER_TABLES: "the tables are of a later release than this one, and nothing was changed",
    },
)
@host_option()
@click.option(
    "--check",
    is_flag=True,
    help="Change nothing; exit 1 when there is something to do, 3 when the tables are newer.",
)
async def migrate(host: str | None, check: bool, as_json: bool) -> int:
    """Bring the tables to this release's revision.

    Those of FLOWACTIONS_DATABASE_URL, or those of a host, its shared engine included.
    """
    from flowactions_plugin.cli.documents import Tables
    from flowactions_plugin.cli.output import line, write_json
    from flowactions_plugin.cli.places import place_of

    async with place_of(host) as place:
        before, wanted = await place.database.migrate(dry=check)
    if as_json:
        write_json(Tables(revision=before if check else wanted, before=before, wanted=wanted))
    elif check:
        line(f"tables at {before or 'none'}, this release at {wanted}")
    elif before == wanted:
        line(f"tables at {wanted}")
    else:
        line(f"tables brought from {before or 'none'} to {wanted}")
    return FAILED if check and before != wanted else DONE
