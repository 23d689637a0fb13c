"""The plugin's loggers: they stay enabled, and what a host's logging raises does not reach the code that logs."""

from __future__ import annotations

import logging
from typing import Any, Final

_ROOMS: Final = "actions alerts auth_events chat cli http operate outbox retention storage"
NAMES: Final = ("flowactions", *(f"flowactions.{room}" for room in _ROOMS.split()))


class PluginLogger(logging.Logger):
    """A logger that `logging.config` cannot disable, as Alembic's template does, and that raises nothing."""

    disabled = property(lambda _: False, lambda _logger, _value: None)

    def makeRecord(self, *arguments: Any, **named: Any) -> logging.LogRecord:  # noqa: N802  logging's name
        """Make a record by the host's factory; if that fails, a plain one."""
        try:
            return super().makeRecord(*arguments, **named)
        except Exception:  # noqa: BLE001
            of_record = *arguments[:8], arguments[9]
            record = logging.LogRecord(*of_record)
            record.__dict__ |= arguments[8] or {}
            return record

    def handle(self, record: logging.LogRecord) -> None:
        """Give a record to the handlers; an error of one is written to stderr, as `logging` does for its own handlers."""
        try:
            super().handle(record)
        except Exception:  # noqa: BLE001
            logging.Handler().handleError(record)


def take_over() -> None:
    """Make the loggers `PluginLogger`s, whether they exist or not. A second call does nothing."""
    for name in NAMES:
        logging.getLogger(name).__class__ = PluginLogger
