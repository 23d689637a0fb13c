"""A host for commands in processes of their own: ``--host tests.plugin.cli.host:make``."""

from __future__ import annotations

import os

from tests.support import SmallHost


def make() -> SmallHost:
    return SmallHost(os.environ)
