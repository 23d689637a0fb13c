"""Who runs a command, as the audit names them."""

from __future__ import annotations

import getpass
import socket

from flowactions_plugin.operators.scope import Actor


def actor() -> Actor:
    """Return the user of the operating system, and the machine."""
    try:
        user = getpass.getuser()
    except (ImportError, KeyError, OSError):
        user = "unknown"  # a container's user id without a name
    return Actor(user, f"{user}@{socket.gethostname()}", "command")
