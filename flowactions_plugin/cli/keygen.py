"""``flowactions keygen``: makes a key."""

from __future__ import annotations

import click

from flowactions_plugin.cli.exits import DONE
from flowactions_plugin.cli.frame import command

SIGNING_PREFIX = "whsec_"


@command("keygen", document="Key")
@click.option(
    "--signing", is_flag=True, help="Make a signing secret of a webhook instead of an encryption key."
)
def keygen(signing: bool, as_json: bool) -> int:
    """Make an encryption key, for FLOWACTIONS_ENCRYPTION_KEYS.

    32 random bytes in base64. It is written to standard output and kept nowhere. To rotate, put it in front of the older
    keys and run 'flowactions reseal'.
    """
    import base64
    import secrets

    from flowactions_plugin.cli.output import line, write_json

    key = (SIGNING_PREFIX if signing else "") + base64.b64encode(secrets.token_bytes(32)).decode()
    if as_json:
        from flowactions_plugin.cli.documents import Key

        write_json(Key(kind="signing" if signing else "encryption", key=key))
    else:
        line(key)
    return DONE
