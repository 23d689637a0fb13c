"""Commands that check and change what is stored: ``doctor``, ``migrate``, ``reseal`` and ``purge``."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import click

from flowactions_plugin.cli.frame import DONE, FAILED, FAILING, NEWER_TABLES, STALLED, command, host_option
from flowactions_plugin.cli.options import WORDS, yes_option
from flowactions_plugin.cli.output import confirmed, line, status, write_json
from flowactions_plugin.log_text import plural

if TYPE_CHECKING:
    from flowactions_plugin.cli.context import CommandContext


@command(
    "doctor",
    document="cli.diagnosis:Diagnosis",
    exits={
        DONE: "no check failed: deliveries work, or nothing is due",
        FAILED: "a check failed",
        STALLED: "deliveries are stalled: rows are due, and nobody claims them",
        FAILING: "deliveries are failing: most attempts of the last minutes have failed, and not of one organization alone",
    },
)
@host_option()
@click.option(
    "--url", multiple=True, help="Say what would happen to a webhook to this URL, and why. May be repeated."
)
@click.option(
    "--chat/--no-chat",
    "with_chat",
    default=True,
    show_default=True,
    help="Ask the chat provider about stored tokens, at most 20 of them.",
)
async def doctor(host: str | None, url: tuple[str, ...], with_chat: bool, as_json: bool) -> int:
    """Check settings, database, tables, clocks, keys, chat tokens, egress, its proxy and deliveries.

    To check that the database can be written, it writes a row and rolls it back. It changes nothing else. The
    exit status is that of the verdict, so that a monitor can run it.
    """
    from flowactions_plugin.cli.diagnosis import diagnose

    found = await diagnose(host, url, with_chat=with_chat)
    if as_json:
        write_json(found)
        return found.exit_status
    for check in found.checks:
        line(f"{check.result:8} {check.name:12} {check.message}")
        if check.advice:
            line(f"{'':21} -> {check.advice}")
    return found.exit_status


@command(
    "migrate",
    document="cli.documents:Tables",
    exits={
        DONE: "the tables are of this release",
        FAILED: "it failed; or, with --check, something is to be done",
        NEWER_TABLES: "the tables are of a later release than this one, and nothing was changed",
    },
)
@host_option()
@click.option(
    "--check",
    is_flag=True,
    help="Change nothing; exit 1 if the tables must be changed, 3 if they are newer than this release.",
)
async def migrate(host: str | None, check: bool, as_json: bool) -> int:
    """Create the tables, or upgrade them to this release's revision.

    The tables are those of FLOWACTIONS_DATABASE_URL, or with --host those of the host, its shared engine included.
    """
    from flowactions_plugin.cli.context import context_of
    from flowactions_plugin.cli.documents import Tables

    async with context_of(host) as context:
        before, wanted = await context.database.migrate(dry=check)
    if as_json:
        write_json(Tables(revision=before if check else wanted, before=before, wanted=wanted))
    elif check:
        line(f"{f'tables at revision {before}' if before else 'no tables yet'}, this release at {wanted}")
    elif before == wanted:
        line(f"tables at {wanted}")
    elif before is None:
        line(f"created the tables (revision {wanted})")
    else:
        line(f"upgraded the tables from revision {before} to {wanted}")
    return FAILED if check and before != wanted else DONE


@command(
    "reseal",
    document="cli.documents:Tokens",
    exits={
        DONE: "every token is sealed with the newest key",
        FAILED: "no key opens some token, and the message names its organization; or, with --check, something is "
        "to be done; or it failed",
    },
    opens=True,
)
@click.option("--check", is_flag=True, help="Change nothing; exit 1 if tokens must be encrypted again.")
async def reseal(context: CommandContext, check: bool, as_json: bool) -> int:
    """Encrypt every stored token with the newest encryption key.

    Run it after you have put a new key before the others in FLOWACTIONS_ENCRYPTION_KEYS. Then you can remove the older
    keys. Hosts continue to work meanwhile.
    """
    from flowactions_plugin.chat import tokens
    from flowactions_plugin.chat.service import keys_of
    from flowactions_plugin.chat.store import ConnectionStore
    from flowactions_plugin.cli.documents import Tokens

    keys = keys_of(context.settings, context.database)
    done = await tokens.reseal(ConnectionStore(context.database), keys, dry=check)
    if as_json:
        write_json(Tokens(changed=done.changed, current=done.current, unreadable=list(done.broken), dry=check))
    else:
        verb = "would be resealed" if check else "resealed"
        line(f"tokens {verb}: {done.changed}; under the newest key already: {done.current}")
    for organization_id in done.broken:
        status(
            f"flowactions: no key opens the token of organization {organization_id}: add the key that is missing, "
            "or let the organization reconnect"
        )
    return FAILED if done.broken or (check and done.changed) else DONE


@command(
    "purge",
    document="cli.documents:Purge",
    exits={FAILED: "it failed, or nobody said yes; what was removed before stays removed"},
    opens=True,
)
@click.argument("organization", type=WORDS)
@click.option("--dry-run", is_flag=True, help="Count only.")
@yes_option
async def purge(context: CommandContext, organization: str, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Delete all rows of an organization, and revoke its chat token.

    Deliveries that wait are deleted too, and are not sent. The command counts the rows first. One line of the audit stays:
    it has the person and the numbers. If the command was interrupted, run it again.
    """
    from msgspec.structs import asdict

    from flowactions_plugin.chat.service import build_chat
    from flowactions_plugin.cli.context import actor
    from flowactions_plugin.cli.documents import Purge
    from flowactions_plugin.errors import CannotRun, NotConfigured
    from flowactions_plugin.operations import purge as purging

    if not organization.strip():
        raise CannotRun("ORGANIZATION must be an id")
    async with AsyncExitStack() as stack:
        chat = build_chat(context.settings, context.database)
        disconnect = None
        if not isinstance(chat, NotConfigured):
            stack.push_async_callback(chat.aclose)
            disconnect = chat.connections.disconnect
        counts = await purging.purge(context.database, organization, actor(), dry=True)
        if counts.chat_connection and disconnect is None:
            status(f"the chat token cannot be revoked at the provider: {chat}")
        revoked: bool | None = None
        total = sum(asdict(counts).values())
        if not as_json:
            _show_counts(asdict(counts))
        if not dry_run and total:
            if not confirmed(f"Remove all of this of organization {organization}?", yes=yes):
                return FAILED
            revoked = disconnect is not None if counts.chat_connection else None
            counts = await purging.purge(
                context.database, organization, actor(), dry=False, disconnect=disconnect
            )
    if as_json:
        write_json(Purge(organization=organization, dry=dry_run, counts=counts, token_revoked=revoked))
    elif not total:
        status("nothing is kept of this organization")
    elif not dry_run:
        line(f"removed: {plural(sum(asdict(counts).values()), 'row')} of organization {organization}")
    return DONE


def _show_counts(counts: dict[str, int]) -> None:
    for name, number in counts.items():
        if number:
            line(f"{name.replace('_', ' '):18} {number:,}")
