"""Commands that change what is stored: ``migrate``, ``reseal`` and ``purge``; and ``keygen``."""

from __future__ import annotations

import base64
import secrets
from contextlib import AsyncExitStack

from flowactions_plugin.chat import tokens
from flowactions_plugin.chat.service import build_chat, keys_of
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.cli.context import CommandContext, actor, context_of
from flowactions_plugin.cli.frame import DONE, FAILED
from flowactions_plugin.cli.output import confirmed, hint, line, status
from flowactions_plugin.errors import CannotRun, NotConfigured
from flowactions_plugin.log_text import plural
from flowactions_plugin.operations.purge import Purge


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


async def reseal(context: CommandContext) -> int:
    """Encrypt the tokens of chat connections with the newest key."""
    keys = keys_of(context.settings, context.database)
    done = await tokens.reseal(ConnectionStore(context.database), keys, dry=False)
    line(f"tokens resealed: {done.changed}; under the newest key already: {done.current}")
    for organization_id in done.broken:
        status(
            f"flowactions: no key opens the token of organization {organization_id}: add the key that is missing, "
            "or let the organization reconnect"
        )
    return FAILED if done.broken else DONE


async def purge(context: CommandContext, organization: str, yes: bool) -> int:
    """Count what is kept of an organization, ask, and delete it."""
    if not organization.strip():
        raise CannotRun("ORGANIZATION must be an id")
    purging = Purge(context.database, organization)
    counts = await purging.count()
    for name, number in counts.items():
        if number:
            line(f"{name.replace('_', ' '):18} {number:,}")
    if not any(counts.values()):
        hint("nothing is kept of this organization")
        return DONE
    async with AsyncExitStack() as stack:
        chat = build_chat(context.settings, context.database)
        disconnect = None
        if not isinstance(chat, NotConfigured):
            stack.push_async_callback(chat.aclose)
            disconnect = chat.connections.disconnect
        elif counts["chat_connection"]:
            status(f"the chat token cannot be revoked at the provider: {chat}")
        if not confirmed(f"Remove all of this of organization {organization}?", yes=yes):
            return FAILED
        done = await purging.run(actor(), disconnect)
    line(f"removed: {plural(sum(done.values()), 'row')} of organization {organization}")
    return DONE
