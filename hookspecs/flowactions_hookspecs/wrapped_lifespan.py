"""One run of an app's lifespan, with the plugins' inside it: the app starts first and stops last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from flowactions_hookspecs.errors import AlreadyStarted, StartFailed

Message: TypeAlias = MutableMapping[str, Any]

log = logging.getLogger("flowactions")

TWICE = (
    "The plugins are started already: either the wrapped app runs their lifespan, or you enter `actions.lifespan()` "
    "by hand and wrap with `lifespan=False`."
)


class WrappedLifespan:
    """Runs an app's lifespan together with the plugins' lifespan.

    The app runs in the server's own task, and its messages are passed on unchanged. When the app has started, the plugins
    are started; only then the server gets the message. If a plugin cannot start, the app is stopped first, and then the
    server gets the reason. If the app does not answer the startup, it has no lifespan; the plugins still have one.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        opens: Callable[[], AbstractAsyncContextManager[None]],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._app = app
        self._plugins = _Held(opens)
        self._receive = receive
        self._send = send
        self._startup_received = False
        self._answered = False
        self._start_error: Exception | None = None
        self._start_failure_sent = False
        self._app_was_stopped = False
        self._stop_failure: str | None = None

    async def run(self, scope: MutableMapping[str, Any]) -> None:
        """Run the app's lifespan until it is over.

        Args:
            scope: the lifespan's scope, passed on unchanged.
        """
        try:
            await self._app(scope, self._app_receives, self._app_sends)
        except Exception as exc:
            if self._answered:
                await self._stop()
                await self._say_start_failed()
                raise
            self._log_no_lifespan(exc)
        except BaseException:
            await self._stop()
            raise
        if self._start_error is not None:
            await self._say_start_failed()
        elif not self._answered or self._plugins.open:
            await self._go_on_without_the_app()
        if self._start_error is not None:
            raise self._start_error  # as frameworks do after they said so; some servers and test clients only see this

    async def _app_receives(self) -> Message:
        if self._start_error is not None and not self._app_was_stopped:
            self._app_was_stopped = True
            return {"type": "lifespan.shutdown"}
        return await self._next()

    async def _app_sends(self, message: Message) -> None:
        kind = message["type"]
        if kind == "lifespan.startup.complete":
            self._answered = True
            if await self._start():
                await self._send(message)
        elif kind == "lifespan.startup.failed":
            self._answered = True
            await self._send(message)
        elif kind in {"lifespan.shutdown.complete", "lifespan.shutdown.failed"}:
            await self._app_stopped(message)
        else:
            await self._send(message)

    async def _app_stopped(self, message: Message) -> None:
        if self._start_error is not None:
            if message["type"] == "lifespan.shutdown.failed":
                log.error(
                    "after that, the app could not be stopped: %s",
                    message.get("message", ""),
                    extra={"event": "wrap.app_not_stopped"},
                )
            await self._say_start_failed()
            return
        await self._stop()  # a no-op, unless the app stops of itself
        if self._stop_failure is not None and message["type"] == "lifespan.shutdown.complete":
            message = {"type": "lifespan.shutdown.failed", "message": self._stop_failure}
        await self._send(message)

    async def _go_on_without_the_app(self) -> None:
        if not self._answered:
            if not self._startup_received:
                await self._next()
            if not await self._start():
                await self._say_start_failed()
                return
            await self._send({"type": "lifespan.startup.complete"})
        await self._next()
        await self._app_stopped({"type": "lifespan.shutdown.complete"})

    async def _next(self) -> Message:
        """Wait for the server's next message; if it is the shutdown, stop the plugins before the app gets it."""
        try:
            message = await self._receive()
        except BaseException:  # the server gives up
            await self._stop()
            raise
        if message["type"] == "lifespan.startup":
            self._startup_received = True
        elif message["type"] == "lifespan.shutdown":
            await self._stop()
        return message

    async def _start(self) -> bool:
        try:
            await self._plugins.start()
        except AlreadyStarted:
            self._start_error = AlreadyStarted(TWICE)
        except Exception as exc:  # noqa: BLE001  raised when the app has stopped
            self._start_error = exc
        return self._start_error is None

    async def _say_start_failed(self) -> None:
        if self._start_error is not None and not self._start_failure_sent:
            self._start_failure_sent = True
            message = str(self._start_error) or repr(self._start_error)
            await self._send({"type": "lifespan.startup.failed", "message": message})

    async def _stop(self) -> None:
        try:
            await self._plugins.stop()
        except Exception as exc:
            log.exception("the plugins could not be stopped", extra={"event": "wrap.plugins_not_stopped"})
            self._stop_failure = f"the plugins could not be stopped: {type(exc).__name__}: {exc}"

    def _log_no_lifespan(self, exc: Exception) -> None:
        if self._startup_received:
            log.warning(
                "the app's lifespan failed without an answer; the app is served without it",
                exc_info=exc,
                extra={"event": "wrap.app_lifespan_failed"},
            )
        else:
            log.debug("the app has no lifespan: %r", exc, extra={"event": "wrap.no_lifespan"})


class _Held:
    """Enters and leaves a context in one task of its own.

    Cancel scopes and task groups require this, and the app may receive and send in different tasks.
    """

    def __init__(self, opens: Callable[[], AbstractAsyncContextManager[None]]) -> None:
        self._opens = opens
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.open = False

    async def start(self) -> None:
        """Enter it. Raises what entering raises."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._hold(opened), name="flowactions lifespan")
        try:
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            task.cancel()
            await asyncio.wait({task})
            raise
        if not opened.done():
            raise _error_of(task) or StartFailed("the plugins' lifespan ended while it was opened")
        self._task = task
        self.open = True

    async def stop(self) -> None:
        """Leave it if it is open. Raises what leaving raises."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        try:
            await asyncio.wait({task})
        except BaseException:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self.open = False
        if (error := _error_of(task)) is not None:
            raise error

    async def _hold(self, opened: asyncio.Future[None]) -> None:
        async with self._opens():
            opened.set_result(None)
            try:
                await self._stopping.wait()
            except asyncio.CancelledError:
                log.error(  # noqa: TRY400
                    "the plugins' lifespan was ended before the server's; it can be entered again",
                    extra={"event": "wrap.lifespan_ended_early"},
                )
                raise


def _error_of(task: asyncio.Task[None]) -> BaseException | None:
    return StartFailed("it was cancelled from within") if task.cancelled() else task.exception()
