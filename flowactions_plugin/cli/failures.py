"""Errors as one line of advice and an exit status."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator
from typing import Final

from flowactions_hookspecs import FlowActionsError, HostInvalid, SettingsInvalid
from flowactions_plugin.cli.exits import CANNOT_RUN, FAILED, NEWER_TABLES
from flowactions_plugin.errors import (
    ActionInvalid,
    CannotRun,
    FilterInvalid,
    SchemaNewer,
    SetChanged,
    StorageMisplaced,
)

log = logging.getLogger("flowactions.cli")

UNRUNNABLE: Final = (ActionInvalid, CannotRun, FilterInvalid, HostInvalid, SettingsInvalid, StorageMisplaced)


def exit_status(exc: FlowActionsError) -> int:
    """Return the exit status for an error."""
    if isinstance(exc, SchemaNewer):
        return NEWER_TABLES
    return CANNOT_RUN if isinstance(exc, UNRUNNABLE) and not isinstance(exc, SetChanged) else FAILED


def advice(exc: FlowActionsError) -> str:
    """Return what an error says; the plugin's own errors say what to do."""
    said = str(exc) or type(exc).__name__
    return f"--{said}" if isinstance(exc, FilterInvalid) and exc.field else said


def summary(exc: BaseException) -> str:
    """Return an error's type and location, without its message, which may hold a secret."""
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith("<")]
    position = (exc.filename, exc.lineno) if isinstance(exc, SyntaxError) else None
    if position is None and frames:
        position = (frames[-1].filename, frames[-1].lineno)
    what = (
        f"{type(exc).__name__} of {exc.name!r}" if isinstance(exc, ModuleNotFoundError) else type(exc).__name__
    )
    return f"{what} in {position[0]}, line {position[1]}; --log-level debug shows more" if position else what


@contextlib.contextmanager
def errors_in(what: str) -> Iterator[None]:
    """Translate exceptions of the host's own code into one line.

    Raises:
        CannotRun: the code failed.
    """
    try:
        yield
    except FlowActionsError:
        raise
    except (Exception, SystemExit) as exc:
        log.debug(what, exc_info=True, extra={"event": "command.host_failed"})
        raise CannotRun(f"{what}: {summary(exc)}") from exc
