"""Runs a host: what every way of running one has in common, and the way within this process.

A host never shares an event loop with the kit: one that blocks its loop, or a thread, is told apart from a kit that is
stuck.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from flowactions_conformance.kit import under_test
from flowactions_conformance.kit.limits import LIMITS, Limits, Waiting
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.output import Output
from flowactions_conformance.kit.turns import taking_turns
from flowactions_conformance.kit.under_test import Env, Factory, HostUnderTest, Wire
from flowactions_conformance.serving import serve


class Method(NamedTuple):
    """A method of the driver, as it crosses a process boundary.

    Attributes:
        arguments: the types of its arguments.
        returns: the type of what it returns.
        is_async: whether it is a coroutine function.
    """

    arguments: tuple[Any, ...]
    returns: Any
    is_async: bool = True


METHODS: Final[Mapping[str, Method]] = {
    "seed": Method((under_test.World,), dict[str, str]),
    "palette": Method((under_test.Login,), list[dict[str, Any]]),
    "open": Method((str, str, str), under_test.Turn),
    "next": Method((str, str | None), under_test.Turn),
    "headers": Method((under_test.Login,), dict[str, str], is_async=False),
    "trigger": Method((under_test.TriggerRef,), None),
    "save": Method((under_test.Login, under_test.Flow), list[dict[str, Any]]),
    "preview": Method((under_test.Login, str, under_test.Action), dict[str, Any]),
    "fail_commit": Method((), None),
    "handled": Method((str,), int),
    "fail_auth_event": Method((str,), None),
}


CORE_DUTIES: Final[Mapping[str, str]] = {
    "app": "the ASGI app, with the plugin's routes and lifespan mounted",
    "seed": "write organizations, agents, logins and flows into the host's tables",
    "palette": "return the node types as the host's editor gets them",
    "open": "open a flow as an end user, and return the Turn that the client has then",
    "next": "go on to the next content step: flow.next",
    "headers": "return the request headers that sign a person or a backend in",
}
"""What every host's driver must have."""


class About(Wire, frozen=True):
    """What the driver says of the host."""

    claims: tuple[str, ...]
    prefix: str


class Running(Protocol):
    """A host that was started."""

    about: About
    env: Env
    output: Output
    left_at: float | None
    """When the block of ``make_host`` had ended, in monotonic seconds; ``None`` before, and when it was killed."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Calls a method of the driver.

        Raises:
            DriverFault: it raised, returned something else than it should, or did not end in time.
            NotImplementedError: the driver does not have it.
        """
        ...

    async def stop(self) -> None:
        """Stops it as a server does on SIGTERM.

        Raises:
            DriverFault: it did not end in time.
        """
        ...

    async def kill(self) -> None:
        """Ends its process with SIGKILL.

        Raises:
            NotTestable: it runs in the kit's own process.
        """
        ...


def check_about(host: HostUnderTest) -> About:
    """Reads what a driver says of its host.

    Raises:
        DriverFault: it is not a `HostUnderTest`.
    """
    absent = [name for name in METHODS if not hasattr(host, name)]
    if absent:
        raise DriverFault(
            f"{type(host).__name__}, which make_host yields, lacks {', '.join(absent)}; "
            "derive it from flowactions_conformance.HostDriver"
        )
    missing = [f"{name}: {duty}" for name, duty in CORE_DUTIES.items() if _is_stub(getattr(host, name, None))]
    if missing:
        raise DriverFault(
            f"{type(host).__name__}, which make_host yields, does not do its part yet. It lacks\n  "
            + "\n  ".join(missing)
        )
    claims: Any = getattr(host, "claims", frozenset())
    prefix: Any = getattr(host, "prefix", "")
    if isinstance(claims, str) or not all(isinstance(claim, str) for claim in claims):
        raise DriverFault(f"claims of {type(host).__name__} must be a set of profile names, not {claims!r}")
    if not isinstance(prefix, str) or (prefix and (not prefix.startswith("/") or prefix.endswith("/"))):
        raise DriverFault(f"prefix of {type(host).__name__} must be empty or like '/api', not {prefix!r}")
    return About(claims=tuple(sorted(claims)), prefix=prefix)


def _is_stub(member: object) -> bool:
    """Tells whether a method only raises ``NotImplementedError``; also ``app`` that is None.

    Nothing is called for that: without its app, a driver that is nearly done might wait for ever.
    """
    code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
    return member is None or (code is not None and code.co_names == ("NotImplementedError",))


async def call_driver(host: HostUnderTest, name: str, arguments: tuple[object, ...]) -> object:
    """Calls a method of the driver and checks what it returns.

    Raises:
        NotImplementedError: the driver does not have it.
        DriverFault: it raised or returned something else.
    """
    method = METHODS[name]
    try:
        returned = getattr(host, name)(*arguments)
        if isinstance(returned, Awaitable):
            returned = await returned
    except (NotImplementedError, asyncio.CancelledError):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        raise DriverFault(f"{name}() of the driver raised {described(exc)}") from exc
    if method.returns is None:
        return None
    try:
        return msgspec.convert(msgspec.to_builtins(returned), method.returns)
    except (msgspec.ValidationError, TypeError) as exc:
        raise DriverFault(f"{name}() of the driver returned something else than it should: {exc}") from exc


def described(exc: BaseException) -> str:
    """Returns an exception as text: what it says, and the last places in code that are not the kit's."""
    here = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith(here)]
    places = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-3:])
    return f"{type(exc).__name__}: {exc}{places}"


class InProcess:
    """A host in this process, in an event loop and a thread of its own.

    Args:
        factory: makes the host.
        env: for the factory; ``base_url`` is that of ``listener``.
        listener: an open port.
        limits: how long it may take.
    """

    def __init__(self, factory: Factory, env: Env, listener: socket.socket, limits: Limits = LIMITS) -> None:
        self.env = env
        self.output = Output()
        self._waiting = Waiting(limits)
        self.about = About(claims=(), prefix="")
        self.left_at: float | None = None
        self._factory = factory
        self._listener = listener
        self._host: HostUnderTest | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = threading.Event()
        self._started: asyncio.Future[About] | None = None
        self._stop_failure: str | None = None

    async def start(self) -> None:
        """Starts it.

        Raises:
            DriverFault: it could not be made or started, or not within forty seconds.
        """
        own_loop = asyncio.get_running_loop()
        self._started = own_loop.create_future()
        # A daemon: a host that blocks its thread for ever must not keep the kit from ending.
        threading.Thread(target=self._main, args=(own_loop,), name="host", daemon=True).start()
        try:
            async with asyncio.timeout(self._waiting.limits.start):
                self.about = await asyncio.shield(self._started)
        except TimeoutError:
            self._waiting.hung += 1
            raise DriverFault(
                f"the host did not start within {self._waiting.limits.start:g} seconds: make_host, or the lifespan "
                f"of its app, hangs{self._place()}"
            ) from None

    async def call(self, method: str, *arguments: object) -> Any:
        """See `Running.call`."""
        if self._host is None or self._loop is None or self._ended.is_set():
            raise DriverFault(f"{method}() was called on a host that does not run")
        seconds = self._waiting.call
        calling = call_driver(self._host, method, arguments)
        try:
            running = asyncio.run_coroutine_threadsafe(calling, self._loop)
        except RuntimeError:  # its loop was closed at this moment
            calling.close()
            raise DriverFault(f"{method}() was called on a host that does not run") from None
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            self._waiting.hung += 1
            raise DriverFault(
                f"{method}() of the driver did not return within {seconds:g} seconds{self._place()}"
            ) from None
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is not None and own.cancelling():
                raise
            # The host's loop has ended under the call, and has cancelled it.
            raise DriverFault(f"the host ended while {method}() of the driver ran") from None

    async def stop(self) -> None:
        """See `Running.stop`."""
        if self._ended.is_set():
            return
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        seconds = self._waiting.stop
        if not await asyncio.to_thread(self._ended.wait, seconds):
            place = self._place()
            if self._loop is not None and self._task is not None:
                # A host that waits for ever in make_host, or in its lifespan, ends by this; a blocked one does not.
                self._loop.call_soon_threadsafe(self._task.cancel)
                await asyncio.to_thread(self._ended.wait, self._waiting.limits.hung_stop)
            raise DriverFault(f"the host did not stop within {seconds:g} seconds{place}")
        if self._stop_failure is not None:
            raise DriverFault(f"the host failed while it stopped: {self._stop_failure}")

    async def kill(self) -> None:
        """See `Running.kill`."""
        raise NotImplementedError("a host in this process cannot be killed")

    def _main(self, own_loop: asyncio.AbstractEventLoop) -> None:
        def tell(done: Callable[[], None]) -> None:
            # The kit may have given up on this host and closed its loop.
            if not own_loop.is_closed():
                own_loop.call_soon_threadsafe(done)

        started = self._started
        assert started is not None  # noqa: S101  set before the thread was started

        def failed(message: str) -> None:
            if started.done():
                self._stop_failure = message
            else:
                started.set_exception(DriverFault(message))

        try:
            # Not by the policy of the process: a foreign test suite may have set one.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._live(lambda about: tell(lambda: _settle(started, about))))
        except DriverFault as exc:
            message = str(exc)
            tell(lambda: failed(message))
        except asyncio.CancelledError:
            tell(lambda: failed("the host was cancelled, because it hung"))
        except BaseException as exc:  # noqa: BLE001  whatever it is, it is the host's, and the kit goes on
            message = f"the host raised {described(exc)}"
            tell(lambda: failed(message))
        finally:
            self._ended.set()

    async def _live(self, started: Callable[[About], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._stopping = asyncio.Event()

        await live(self._factory, self.env, self._listener, self._serving, started, self.output)
        self.left_at = time.monotonic()

    async def _serving(self, host: HostUnderTest, started: Callable[[], None]) -> None:
        self._host = host  # before the kit's thread hears of it: it may call at once
        started()
        assert self._stopping is not None  # noqa: S101  made by _live
        await self._stopping.wait()

    def _place(self) -> str:
        """Tells where the host's thread is, for messages about a host that hangs."""
        for thread in threading.enumerate():
            frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001  the way to see another thread's stack
            if thread.name == "host" and frame is not None and self._loop is not None:
                names = {id(frame_) for frame_, _ in traceback.walk_stack(frame)}
                if names:
                    last = traceback.extract_stack(frame)[-1]
                    if "selectors.py" not in last.filename:
                        return f"; its event loop is blocked at {last.filename}:{last.lineno} in {last.name}"
        return ""


async def live(
    factory: Factory,
    env: Env,
    listener: socket.socket,
    serving: Callable[[HostUnderTest, Callable[[], None]], Awaitable[None]],
    started: Callable[[About], None],
    output: Output,
) -> None:
    """Makes a host, serves its app, and stops it when ``serving`` returns.

    ``serving`` is given the host and what tells that it has started.

    Raises:
        DriverFault: it could not be made or started.
    """
    try:
        async with taking_turns():
            making = _making(factory, env)
            host = await making.__aenter__()
    except DriverFault:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        raise DriverFault(f"make_host raised {described(exc)}") from exc
    failure: BaseException | None = None
    try:
        about = check_about(host)
        try:
            async with serve(host.app, listener):
                await serving(host, partial(started, about))
        except RuntimeError as exc:
            tail = "\n".join(output.lines)[-3_000:]
            raise DriverFault(f"{exc}:\n{tail}" if tail else str(exc)) from exc
    except BaseException as exc:
        failure = exc
        raise
    finally:
        kind = None if failure is None else type(failure)
        await making.__aexit__(kind, failure, None if failure is None else failure.__traceback__)


def _making(factory: Factory, env: Env) -> AbstractAsyncContextManager[HostUnderTest]:
    try:
        made: Any = factory(env)
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        raise DriverFault(f"make_host raised {described(exc)}") from exc
    if hasattr(made, "__aenter__"):
        manager: AbstractAsyncContextManager[HostUnderTest] = made
        return manager
    if inspect.iscoroutine(made):
        made.close()
    raise DriverFault(
        "make_host must return an async context manager: decorate it with contextlib.asynccontextmanager"
    )


def _settle(started: asyncio.Future[About], about: About) -> None:
    if not started.done():
        started.set_result(about)
