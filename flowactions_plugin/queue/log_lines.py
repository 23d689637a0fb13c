"""The log lines that operators search for: a delivery is dead, or another process has changed it."""

from __future__ import annotations

import logging

from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.claimed import ClaimEnd

log = logging.getLogger("flowactions.outbox")


def log_dead(row_id: object, destination: object, reason: str) -> None:
    """Log that a delivery is dead: one line each, whatever its row holds (§3.1)."""
    name, where = (printable(value, message=True) for value in (row_id, destination))
    log.warning(
        "delivery %s to %s is dead: %s",
        name,
        where,
        printable(reason, message=True),
        extra={"event": "delivery.dead"},
    )


def log_lost(row_id: object, end: ClaimEnd) -> None:
    """Log what has ended a claim before its outcome was written."""
    name, detail = (printable(value, message=True) for value in (row_id, end.detail))
    if end.kind == "reclaimed":
        log.warning("delivery %s was reclaimed by %s", name, detail, extra={"event": "delivery.reclaimed"})
    elif end.kind == "purged":
        log.warning(
            "delivery %s was removed while it was sent: its organization was purged",
            name,
            extra={"event": "delivery.removed"},
        )
    elif end.kind == "deleted":
        log.warning(
            "delivery %s was removed while it was sent: its row was deleted",
            name,
            extra={"event": "delivery.removed"},
        )
    else:
        log.warning(
            "delivery %s was changed to %s while it was sent, and its outcome is dropped",
            name,
            detail,
            extra={"event": "delivery.changed"},
        )
