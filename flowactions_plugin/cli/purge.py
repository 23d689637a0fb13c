"""``flowactions purge``: removes all that is kept of an organization."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from flowactions_plugin.cli.frame import DONE, FAILED, TABLES_EXITS, command
from flowactions_plugin.cli.options import WORDS, host_option, yes_option

if TYPE_CHECKING:
    from flowactions_plugin.operate.purge import Purged


@command(
    "purge",
    document="results:Purge",
    exits={**TABLES_EXITS, FAILED: "it failed, or nobody said yes; what was removed before stays removed"},
)
@click.option("--organization", type=WORDS, required=True, metavar="ID", help="Whose data are removed.")
@host_option()
@click.option("--dry-run", is_flag=True, help="Count only.")
@yes_option
async def purge(organization: str, host: str | None, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Remove all that is kept of an organization, and revoke its chat token.

    Deliveries that wait are removed too, and are not sent. It is counted first. One line of the audit stays, with who did it
    and the numbers. It can be repeated after it was interrupted.
    """
    from flowactions_plugin.chat.service import build_chat
    from flowactions_plugin.cli.output import confirmed, line, status, write_json
    from flowactions_plugin.cli.people import actor
    from flowactions_plugin.cli.places import opened
    from flowactions_plugin.cli.results import Purge
    from flowactions_plugin.errors import CannotRun, NotConfigured
    from flowactions_plugin.operate import purge as purging

    if not organization.strip():
        raise CannotRun("--organization must be an id")
    who = actor()
    async with opened(host) as place, AsyncExitStack() as stack:
        chat = build_chat(place.settings, place.database)
        disconnect = None
        if not isinstance(chat, NotConfigured):
            stack.push_async_callback(chat.aclose)
            disconnect = chat.connections.disconnect
        counts = await purging.purge(place.database, organization, who, dry=True)
        if counts.chat_connection and disconnect is None:
            status(f"the chat token cannot be revoked at the provider: {chat}")
        revoked: bool | None = None
        total = _total(counts)
        if not as_json:
            _show(counts)
        if not dry_run and total:
            if not confirmed(f"Remove all of this of organization {organization}?", yes=yes):
                status("nothing was done")
                return FAILED
            revoked = disconnect is not None if counts.chat_connection else None
            counts = await purging.purge(place.database, organization, who, dry=False, disconnect=disconnect)
    if as_json:
        write_json(Purge(organization=organization, dry=dry_run, counts=counts, token_revoked=revoked))
    elif not total:
        status("nothing is kept of this organization")
    elif not dry_run:
        line(f"removed: {_total(counts):,} rows of organization {organization}")
    return DONE


def _total(counts: Purged) -> int:
    return sum(getattr(counts, name) for name in counts.__struct_fields__)


def _show(counts: Purged) -> None:
    from flowactions_plugin.cli.output import line

    for name in counts.__struct_fields__:
        number = getattr(counts, name)
        if number:
            line(f"{name.replace('_', ' '):18} {number:,}")
