"""Migrates ``FLOWACTIONS_DATABASE_URL`` in a process of its own, which kills itself at a point of it.

``python -m tests.upgrades.dying``    counts the points, prints how many there were, and changes nothing
``python -m tests.upgrades.dying 7``  kills itself (SIGKILL) at the seventh
"""

from __future__ import annotations

import asyncio
import os
import sys

from sqlalchemy import Connection

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import migrations
from flowactions_plugin.storage.database import Database
from tests.crash.actor import Fuse


def _give_up(connection: Connection) -> None:
    _upgrade(connection)
    raise LookupError


_upgrade = migrations.upgrade


if __name__ == "__main__":
    fuse = Fuse()
    fuse.arm(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    if len(sys.argv) == 1:
        migrations.upgrade = _give_up
    try:
        asyncio.run(Database(read_settings(os.environ).database_url).migrate())
    except LookupError:
        print(fuse.passed + 1)  # noqa: T201  the commit that was not made is the last one
