"""``flowactions reseal``: puts every stored token under the newest encryption key."""

from __future__ import annotations

from contextlib import AsyncExitStack

import click

from flowactions_plugin.cli.frame import DONE, FAILED, command
from flowactions_plugin.cli.options import host_option


@command(
    "reseal",
    document="Tokens",
    exits={
        DONE: "every token is sealed with the newest key",
        FAILED: "no key opens some token, and the message names its organization; or, with --check, there is something "
        "to do; or it failed",
    },
)
@host_option()
@click.option("--check", is_flag=True, help="Change nothing; exit 1 when there is something to do.")
async def reseal(host: str | None, check: bool, as_json: bool) -> int:
    """Put every stored token under the newest encryption key.

    After a new key was put in front of FLOWACTIONS_ENCRYPTION_KEYS: seal every stored token under it, so that the older
    keys can be taken away. Hosts go on working meanwhile.
    """
    from flowactions_plugin.chat import reseal as resealing
    from flowactions_plugin.chat.service import keys_of
    from flowactions_plugin.chat.store import ConnectionStore
    from flowactions_plugin.cli.documents import Tokens
    from flowactions_plugin.cli.output import line, status, write_json
    from flowactions_plugin.cli.places import place_of

    async with place_of(host) as place, AsyncExitStack() as stack:
        keys = keys_of(place.settings, place.database)
        stack.push_async_exit(place.database)
        await place.database.open(required=True)
        done = await resealing.reseal(ConnectionStore(place.database), keys, dry=check)
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
