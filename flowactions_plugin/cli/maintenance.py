"""Commands that change what is stored: ``migrate``, ``reseal`` and ``purge``; and ``keygen``."""

from __future__ import annotations

import base64
import secrets
from contextlib import AsyncExitStack

import msgspec
from msgspec.structs import asdict

from flowactions_plugin.chat import tokens
from flowactions_plugin.chat.service import build_chat, keys_of
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.cli.context import CommandContext, actor, context_of
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.output import confirmed, hint, line, status
from flowactions_plugin.errors import CannotRun, NotConfigured
from flowactions_plugin.log_text import plural
from flowactions_plugin.operations import purge as purging


class Purge(msgspec.Struct, kw_only=True, rename="camel"):
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
    counts: purging.Purged
    token_revoked: bool | None = None


def keygen(signing: bool) -> int:
    """Make an encryption key, or a signing secret."""
    line(("whsec_" if signing else "") + base64.b64encode(secrets.token_bytes(32)).decode())
    return DONE


async def migrate(host: str | None, check: bool) -> int:
    """Bring the tables to this release's revision, or say what they are at."""
    async with context_of(host) as context:
        before, wanted = await context.database.migrate(dry=check)
    if check:
        line(f"{f'tables at revision {before}' if before else 'no tables yet'}, this release at {wanted}")
    elif before == wanted:
        line(f"tables at {wanted}")
    elif before is None:
        line(f"created the tables (revision {wanted})")
    else:
        line(f"upgraded the tables from revision {before} to {wanted}")
    return FAILED if check and before != wanted else DONE


async def reseal(context: CommandContext, check: bool) -> int:
    """Encrypt the tokens of chat connections with the newest key, or count them."""
    keys = keys_of(context.settings, context.database)
    done = await tokens.reseal(ConnectionStore(context.database), keys, dry=check)
    verb = "would be resealed" if check else "resealed"
    line(f"tokens {verb}: {done.changed}; under the newest key already: {done.current}")
    for organization_id in done.broken:
        status(
            f"flowactions: no key opens the token of organization {organization_id}: add the key that is missing, "
            "or let the organization reconnect"
        )
    return FAILED if done.broken or (check and done.changed) else DONE


async def purge(
    context: CommandContext, organization: str, dry_run: bool, yes: bool
) -> int | tuple[Purge, int]:
    """Count what is kept of an organization, ask, and delete it."""
    if not organization.strip():
        raise CannotRun("ORGANIZATION must be an id")
    found = Purge(
        organization=organization,
        dry=dry_run,
        counts=await purging.purge(context.database, organization, actor(), dry=True),
    )
    for name, number in asdict(found.counts).items():
        if number:
            line(f"{name.replace('_', ' '):18} {number:,}")
    is_connected, total = bool(found.counts.chat_connection), sum(asdict(found.counts).values())
    async with AsyncExitStack() as stack:
        chat = build_chat(context.settings, context.database)
        disconnect = None
        if not isinstance(chat, NotConfigured):
            stack.push_async_callback(chat.aclose)
            disconnect = chat.connections.disconnect
        elif is_connected:
            status(f"the chat token cannot be revoked at the provider: {chat}")
        if not dry_run and total:
            if not confirmed(f"Remove all of this of organization {organization}?", yes=yes):
                return FAILED
            found.token_revoked = disconnect is not None if is_connected else None
            found.counts = await purging.purge(
                context.database, organization, actor(), dry=False, disconnect=disconnect
            )
    if not total:
        hint("nothing is kept of this organization")
    elif not dry_run:
        line(f"removed: {plural(sum(asdict(found.counts).values()), 'row')} of organization {organization}")
    return found, DONE
