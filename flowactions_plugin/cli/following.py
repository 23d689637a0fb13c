"""Shows how a bulk action goes on, until it ends."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from flowactions_plugin.bulk.actions import Actions
from flowactions_plugin.bulk.results import Action
from flowactions_plugin.cli.output import console, duration, status
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.operators.scope import Scope

POLL_SECONDS: Final = 0.5
LINE_SECONDS: Final = 10.0
"""How often a line is written where there is no terminal."""

WINDOW_SECONDS: Final = 30.0
"""Over how long the rate is measured."""

RETRY_SECONDS: Final = 5.0


class Pace:
    """The rate of what is done, over the last half minute.

    Args:
        total: how much there is to do.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, now: float, done: int) -> None:
        """Note how much was done at a time, monotonic seconds."""
        self._seen.append((now, done))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """How much is done in a second; 0 while it is not known."""
        if len(self._seen) < 2:
            return 0.0
        (began, before), (now, done) = self._seen[0], self._seen[-1]
        return max(0.0, (done - before) / (now - began)) if now > began else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at this rate; ``None`` while it is not known."""
        if not self.rate:
            return None
        return (self._total - self._seen[-1][1]) / self.rate

    def __str__(self) -> str:
        left = self.seconds_left
        return f"{self.rate:,.1f}/s" + ("" if left is None else f", {duration(left)} left")


class View(Protocol):
    """Where progress is shown."""

    def show(self, action: Action, pace: Pace) -> None:
        """Show how far an action is."""


async def follow(actions: Actions, scope: Scope, action: Action) -> Action:
    """Show how an action goes on until it has ended; a database that is away meanwhile is waited for.

    When the command is interrupted, the action goes on: workers carry it out. It is said how to follow, undo or stop it.

    Args:
        actions: those of the database.
        scope: whose action it is.
        action: as it was last known.

    Returns:
        The action, which has ended.
    """
    pace = Pace(action.counted)
    try:
        with _view(action) as view:
            while True:
                pace.note(time.monotonic(), action.done)
                view.show(action, pace)
                if action.finished_at is not None:
                    return action
                await asyncio.sleep(POLL_SECONDS)
                action = await _read(actions, scope, action)
    except asyncio.CancelledError:
        what = "undo" if action.state == "waiting" else "stop"
        status(
            f"the action goes on; to follow it: flowactions outbox replay --follow {action.id}; "
            f"to {what} it: flowactions outbox {what} {action.id}"
        )
        raise


async def _read(actions: Actions, scope: Scope, action: Action) -> Action:
    while True:
        try:
            return await actions.get(scope, action.id) or action
        except StorageUnavailable as exc:
            status(f"waiting for the database: {exc}")
            await asyncio.sleep(RETRY_SECONDS)


def _view(action: Action) -> AbstractContextManager[View]:
    return _Bar(action) if sys.stderr.isatty() else _Lines()


class _Lines:
    """Writes a line from time to time."""

    def __init__(self) -> None:
        self._next = 0.0
        self._state = ""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def show(self, action: Action, pace: Pace) -> None:
        now = time.monotonic()
        if now < self._next and action.state == self._state:
            return
        self._next, self._state = now + LINE_SECONDS, action.state
        why = f" ({action.state_reason})" if action.state_reason else ""
        status(f"{action.state}{why}: {action.done:,} of {action.counted:,}, {pace}")


class _Bar:
    """Draws a bar on a terminal."""

    def __init__(self, action: Action) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._progress: Any = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f}", markup=False),
            TextColumn("{task.fields[pace]}", markup=False),
            console=console(sys.stderr),
            transient=True,
        )
        self._task = self._progress.add_task(action.state, total=max(1, action.counted), pace="")

    def __enter__(self) -> View:
        self._progress.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.__exit__(*exc)

    def show(self, action: Action, pace: Pace) -> None:
        from flowactions_plugin.log_text import printable

        state = f"{action.state}: {action.state_reason}" if action.state_reason else action.state
        self._progress.update(self._task, completed=action.done, description=printable(state), pace=str(pace))
