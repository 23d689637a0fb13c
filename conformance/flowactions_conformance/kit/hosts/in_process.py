"""Runs a host within this process.

A host never shares an event loop with the kit: one that blocks its loop, or a thread, is told apart from a kit that is
stuck.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from flowactions_conformance.kit.hosts.hosting import About, Running, call_driver, described, live
from flowactions_conformance.kit.hosts.limits import SHORT_SECONDS, Patience
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.under_test import Env, Factory, HostDriver
from flowactions_hookspecs.tasks import is_being_cancelled

_LOOKS = 6
"""How often a host's thread is looked at within a second."""


class InProcess(Running):
    """A host in this process, in an event loop and a thread of its own.

    Args:
        factory: makes the host.
        env: for the factory; ``base_url`` is that of ``listener``.
        listener: an open port; ``None``: only the driver lives here, and somebody else serves the host.
        patience: how it is waited for.
        output: what it prints, for the message of a host that does not start.
    """

    def __init__(
        self,
        factory: Factory,
        env: Env,
        listener: socket.socket | None,
        patience: Patience,
        output: Output,
    ) -> None:
        super().__init__(env, patience, output)
        self._factory = factory
        self._listener = listener
        self._host: HostDriver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._begun: Future[About] = Future()
        self._ended: Future[str | None] = Future()
        """With what has failed while it stopped."""
        # A daemon: a host that blocks its thread for ever must not keep the kit from ending.
        self._thread = threading.Thread(target=self._main, name="host", daemon=True)

    async def start(self) -> None:
        """Start it.

        Raises:
            DriverFault: it could not be made or started, or not in time.
        """
        self._thread.start()
        await self._started(asyncio.shield(asyncio.wrap_future(self._begun)))

    async def call(self, method: str, *arguments: object) -> Any:
        """See `Running.call`."""
        if self._host is None or self._loop is None or self._ended.done():
            raise DriverFault(f"{method}() was called on a host that does not run")
        calling = call_driver(self._host, method, arguments)
        try:
            running = asyncio.run_coroutine_threadsafe(calling, self._loop)
        except RuntimeError:  # its loop was closed at this moment
            calling.close()
            raise DriverFault(f"{method}() was called on a host that does not run") from None
        try:
            return await self._returned(method, asyncio.wrap_future(running))
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            # The host's loop has ended under the call, and has cancelled it.
            raise DriverFault(f"the host ended while {method}() of the driver ran") from None

    async def stop(self, *, judged: bool = True) -> None:
        """See `Running.stop`."""
        if self._ended.done():
            return
        if self._loop is None:  # its thread has not come so far
            self._stopping.set()
        else:
            self._loop.call_soon_threadsafe(self._stopping.set)
        ended = asyncio.shield(asyncio.wrap_future(self._ended))
        failure = await self._stopped(ended, self._give_up, judged=judged)
        if failure is not None:
            raise DriverFault(f"the host failed while it stopped: {failure}")

    async def _give_up(self) -> None:
        if self._loop is not None and self._task is not None:
            # A host that waits for ever in make_host, or in its lifespan, ends by this; a blocked one does not.
            self._loop.call_soon_threadsafe(self._task.cancel)
            await asyncio.wait({asyncio.wrap_future(self._ended)}, timeout=SHORT_SECONDS)

    async def kill(self) -> None:
        """See `Running.kill`."""
        raise NotImplementedError("a host in this process cannot be killed")

    def _main(self) -> None:
        failure = None
        try:
            # Not by the policy of the process: a foreign test suite may have set one.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._live())
        except DriverFault as exc:
            failure = str(exc)
        except asyncio.CancelledError:
            failure = "the host was cancelled, because it hung"
        except BaseException as exc:  # noqa: BLE001  whatever it is, it is the host's, and the kit goes on
            failure = f"the host raised {described(exc)}"
        if failure is not None and not self._begun.done():
            self._begun.set_exception(DriverFault(failure))
        self._ended.set_result(failure)

    async def _live(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        begun = self._begun.set_result
        await live(self._factory, self.env, self._listener, self._serving, begun, self.output)
        self.left_at = time.monotonic()

    async def _serving(self, host: HostDriver, started: Callable[[], None]) -> None:
        self._host = host  # before the kit's thread hears of it: it may call at once
        started()
        await self._stopping.wait()

    async def _place(self) -> str:
        """Tell where the host's event loop is blocked: it is at one place for a second, and answers nothing meanwhile."""
        loop, answered = self._loop, threading.Event()
        if loop is None or loop.is_closed():
            return ""
        loop.call_soon_threadsafe(answered.set)
        places: set[str] = set()
        for _ in range(_LOOKS):
            await asyncio.sleep(1 / (_LOOKS - 1))
            places.add(self._line())
        if answered.is_set() or len(places) > 1:
            return ""
        place = places.pop()
        return f"; its event loop is blocked at {place}" if place else ""

    def _line(self) -> str:
        """Return the line that the host's thread is at, and nothing where it waits for events."""
        frame = sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001  the way to see it
        if frame is None:
            return ""
        last = traceback.extract_stack(frame)[-1]
        return "" if "selectors.py" in last.filename else f"{last.filename}:{last.lineno} in {last.name}"
