"""The log line that operators search for: a delivery is dead (§3.1)."""

from __future__ import annotations

import logging

from flowactions_plugin.log_text import printable
from flowactions_plugin.storage.text import as_text

log = logging.getLogger("flowactions.outbox")


def log_dead(row_id: object, destination: object, reason: str) -> None:
    """Log that a delivery is dead: one line each, whatever its row holds."""
    name, where = (printable(as_text(value), message=True) for value in (row_id, destination))
    log.warning(
        "delivery %s to %s is dead: %s",
        name,
        where,
        printable(reason, message=True),
        extra={"event": "delivery.dead"},
    )
