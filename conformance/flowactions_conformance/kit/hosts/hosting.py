"""Runs a host: what every way of running one has in common."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import importlib
import inspect
import re
import socket
import threading
import traceback
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import httpx
import msgspec

from flowactions_conformance.kit import under_test
from flowactions_conformance.kit.hosts.limits import LIMITS, EffectTimeout, Late, Limits, Patience
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.plugin import ROUTES
from flowactions_conformance.kit.under_test import Env, Factory, HostDriver, Wire
from flowactions_conformance.serving import NO_TLS, serve

T = TypeVar("T")

SERVER_ERRORS: Final = 500
ANSWER_LINES: Final = 5
MAKING_SECONDS: Final = 15.0
"""For how long another host of this process that is being made is waited for."""
ECHO_SECONDS: Final = 5.0
"""For how long an answer of the echo route is waited for, when a host is looked at: one that takes longer is no sign of life."""


class Method(NamedTuple):
    """A method of the driver, as it crosses a process boundary.

    Attributes:
        arguments: the types of its arguments.
        returns: the type of what it returns.
        meant: the same in words.
        is_async: whether it is a coroutine function.
        is_optional: whether a check that needs it is only not tried without it.
    """

    arguments: tuple[Any, ...]
    returns: Any
    meant: str = ""
    is_async: bool = True
    is_optional: bool = False


TURN: Final = "a Turn(session, step_id, done, halted, raw)"
DESCRIPTIONS: Final = "a list of node types as dicts, as NodeType.describe() gave them"
NOT_JSON: Final = (bytes, bytearray, memoryview, uuid.UUID, decimal.Decimal, dt.datetime, dt.date)
"""What msgspec would turn into text by itself, though a driver should not return it."""

METHODS: Final[Mapping[str, Method]] = {
    "seed": Method((under_test.World,), dict[str, str], "a dict of kit ids to your ids"),
    "palette": Method((under_test.Login,), list[dict[str, Any]], DESCRIPTIONS),
    "open": Method((str, str, str), under_test.Turn, TURN),
    "next": Method((str, str | None), under_test.Turn, TURN),
    "headers": Method((under_test.Login,), dict[str, str], "a dict of header names to values", is_async=False),
    "trigger": Method((under_test.TriggerRef,), None),
    "save": Method(
        (under_test.Login, under_test.Flow), list[dict[str, Any]], "a list of config problems as dicts"
    ),
    "preview": Method((under_test.Login, str, under_test.Action), dict[str, Any], "the preview as a dict"),
    "fail_commit": Method((), None),
    "fail_database": Method((bool,), None, is_optional=True),
    "handled": Method((str,), int, "a whole number"),
    "fail_auth_event": Method((str,), None),
    "restart": Method((), None, is_optional=True),
    "kill": Method((), None, is_optional=True),
}
RESTARTS: Final = ("restart", "kill")
"""Those by which the driver of a served host starts it again."""
IN_PROCESS: Final = frozenset({"fail_commit", "fail_database", "fail_auth_event"})
"""Those that reach into the host's process: the driver of a served host may leave them out."""


CORE_DUTIES: Final[Mapping[str, str]] = {
    "app": "the ASGI app, with the plugin's routes and lifespan mounted",
    "seed": "write organizations, agents, logins and flows into the host's tables",
    "palette": "return the node types as the host's editor gets them",
    "open": "open a flow as an end user, and return the Turn that the client has then",
    "next": "continue to the next content step: flow.next",
    "headers": "return the request headers that sign a person or a backend in",
}
"""What every host's driver must have."""
MAY_LACK: Final = ("branch", "subflow")
"""Kinds of items of a world that a host may lack that claims ``loops``."""


class About(Wire, frozen=True):
    """What the driver says of the host."""

    claims: tuple[str, ...] = ()
    prefix: str = ""
    edits: Literal["pinned", "live"] | None = None
    lacks: tuple[str, ...] = ()
    restarts: tuple[str, ...] = ()


class Running(ABC):
    """A host that was started.

    Args:
        env: for the factory.
        limits: how long it may take.
        patience: how it is waited for.

    Attributes:
        about: what the driver says of it.
        left_at: when the block of ``make_host`` had ended, in monotonic seconds; ``None`` before, and when it was killed.
    """

    def __init__(self, env: Env, limits: Limits = LIMITS, patience: Patience | None = None) -> None:
        self.env = env
        self.about = About()
        self.output = Output()
        self.left_at: float | None = None
        self._limits = limits
        self._patience = patience or Patience()
        self._calls = EffectTimeout(limits.call, limits.hung_call)

    @abstractmethod
    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the driver.

        Raises:
            DriverFault: it raised, returned something else than it should, or did not end in time.
            NotImplementedError: the driver does not have it.
        """

    @abstractmethod
    async def stop(self, *, is_judged: bool = True) -> None:
        """Stop it as a server does on SIGTERM.

        Args:
            is_judged: whether anybody asks what came of it; else it is ended at its limit, also on a slow machine.

        Raises:
            DriverFault: it did not end in time.
        """

    @abstractmethod
    async def kill(self) -> None:
        """End its process with SIGKILL.

        Raises:
            NotImplementedError: it runs in the kit's own process.
        """

    async def echoes(self) -> bool:
        """Return whether the probe's echo route answers, with any answer."""
        url = f"{self.env.base_url}{self.about.prefix}{ROUTES}/echo"
        async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=ECHO_SECONDS) as client:
            try:
                await client.get(url)
            except httpx.TransportError:
                return False
        return True

    async def _started(self, starting: Awaitable[About]) -> None:
        """Wait until it has started.

        Raises:
            DriverFault: it has not, in time.
        """
        try:
            self.about = await self._patience.wait(starting, self._limits.start)
        except Late as late:
            self._calls.expired()
            raise DriverFault(
                f"the host did not start within {late.seconds:g} seconds: make_host, or the lifespan "
                f"of its app, hangs{await self._place()}"
            ) from None

    async def _returned(self, method: str, returning: Awaitable[T], seconds: float | None = None) -> T:
        """Wait until a method of the driver has returned.

        Raises:
            DriverFault: it has not, in time.
        """
        try:
            returned = await self._patience.wait(returning, seconds or self._calls.seconds)
        except Late as late:
            self._calls.expired()
            raise DriverFault(
                f"{method}() of the driver did not return within {late.seconds:g} seconds{await self._place()}"
            ) from None
        self._calls.came()
        return returned

    async def _stopped(
        self, stopping: Awaitable[T], give_up: Callable[[], Awaitable[None]], *, is_judged: bool
    ) -> T:
        """Wait until it has stopped; if it does not in time, end it in another way.

        Raises:
            DriverFault: it has not, in time.
        """
        seconds = self._limits.stop
        if self._calls.missed:
            seconds = min(seconds, self._limits.hung_stop)
        try:
            patience = self._patience if is_judged else Patience(scale=self._patience.scale)
            return await patience.wait(stopping, seconds)
        except Late as late:
            place = await self._place()
            await give_up()
            raise DriverFault(f"the host did not stop within {late.seconds:g} seconds{place}") from None

    async def _place(self) -> str:
        """Return where the host is blocked, as the end of a sentence; empty, if that is not known."""
        return ""


def check_about(host: HostDriver, *, is_served: bool = False) -> About:
    """Read what a driver says of its host.

    Args:
        host: the driver.
        is_served: whether somebody else serves the host: then it needs no ``app``.

    Raises:
        DriverFault: it is not a `HostDriver`.
    """
    maker = "make_driver" if is_served else "make_host"
    may_lack = IN_PROCESS if is_served else frozenset()
    absent = [
        name
        for name, method in METHODS.items()
        if not method.is_optional and name not in may_lack and not hasattr(host, name)
    ]
    if absent:
        raise DriverFault(
            f"{type(host).__name__}, which {maker} yields, lacks {', '.join(absent)}; "
            "derive it from flowactions_conformance.HostDriver"
        )
    missing = [
        f"{name}: {duty}"
        for name, duty in CORE_DUTIES.items()
        if _is_stub(getattr(host, name, None)) and not (is_served and name == "app")
    ]
    if missing:
        raise DriverFault(
            f"{type(host).__name__}, which {maker} yields, does not do its part yet. It lacks\n  "
            + "\n  ".join(missing)
        )
    claims: Any = getattr(host, "claims", frozenset())
    prefix: Any = getattr(host, "prefix", "")
    if isinstance(claims, str) or not all(isinstance(claim, str) for claim in claims):
        raise DriverFault(f"claims of {type(host).__name__} must be a set of profile names, not {claims!r}")
    if not isinstance(prefix, str) or (prefix and (not prefix.startswith("/") or prefix.endswith("/"))):
        raise DriverFault(f"prefix of {type(host).__name__} must be empty or like '/api', not {prefix!r}")
    edits: Any = getattr(host, "edits", None)
    if edits not in {"pinned", "live", None}:
        raise DriverFault(f"edits of {type(host).__name__} must be 'pinned', 'live' or None, not {edits!r}")
    lacks: Any = getattr(host, "lacks", frozenset())
    if isinstance(lacks, str) or not set(lacks) <= set(MAY_LACK):
        kinds = ", ".join(map(repr, MAY_LACK))
        raise DriverFault(f"lacks of {type(host).__name__} must be a set of {kinds}, not {lacks!r}")
    return About(
        claims=tuple(sorted(claims)),
        prefix=prefix,
        edits=edits,
        lacks=tuple(sorted(lacks)),
        restarts=tuple(name for name in RESTARTS if not _is_stub(getattr(host, name, None))),
    )


def _is_stub(member: object) -> bool:
    """Tells whether a method only raises ``NotImplementedError``; also ``app`` that is None.

    Nothing is called for that: without its app, a driver that is nearly done might wait for ever.
    """
    code = getattr(inspect.unwrap(member), "__code__", None) if callable(member) else None
    return member is None or (code is not None and code.co_names == ("NotImplementedError",))


async def call_driver(host: HostDriver, name: str, arguments: tuple[object, ...]) -> object:
    """Call a method of the driver and check what it returns.

    Raises:
        NotImplementedError: the driver does not have it.
        DriverFault: it raised or returned something else.
    """
    method = METHODS[name]
    if not hasattr(host, name):
        raise NotImplementedError(name)
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
        converted = msgspec.convert(msgspec.to_builtins(returned, builtin_types=NOT_JSON), method.returns)
    except (msgspec.ValidationError, TypeError) as exc:
        raise DriverFault(f"{name}() of the driver must return {method.meant}: {_misfit(exc)}") from exc
    if name == "headers":
        for header, value in converted.items():
            if not (header.isascii() and value.isascii() and header and (header + value).isprintable()):
                # What it holds signs somebody in, and is not shown.
                raise DriverFault(
                    f"headers() of the driver must return {method.meant}: the name or value of {header!r} is none of HTTP's"
                )
    return converted


def _misfit(error: Exception) -> str:
    """Return where in a value msgspec has found what, in the names that a driver's author writes."""
    what, _, place = str(error).partition(" - at ")
    place = re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", place.strip("`"))
    place = (
        place.replace("key` in `$", "a key").replace("$", "").replace("[...]", " one of its values").strip(". ")
    )
    return f"{place}: {what}" if place else what


def described(exc: BaseException) -> str:
    """Return an exception as text: what it says, and the last places in code that are not the kit's."""
    here = str(Path(__file__).parents[1])
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith(here)]
    places = "".join(f"\n  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames[-3:])
    return f"{type(exc).__name__}: {exc}{_answer_in(exc)}{places}"


def _answer_in(exc: BaseException) -> str:
    """Return the first lines of a server's error, which HTTP clients attach to what they raise."""
    response: Any = getattr(exc, "response", None)
    with suppress(Exception):
        if int(response.status_code) >= SERVER_ERRORS:
            return "".join(
                f"\n  it answered: {line[:200]}" for line in response.text.splitlines()[:ANSWER_LINES]
            )
    return ""


async def live(
    factory: Factory,
    env: Env,
    listener: socket.socket | None,
    serving: Callable[[HostDriver, Callable[[], None]], Awaitable[None]],
    started: Callable[[About], None],
    output: Output,
) -> None:
    """Make a host, serve its app, and stop it when ``serving`` returns.

    ``serving`` is given the host and what tells that it has started. Without a listener, somebody else serves the app.

    Raises:
        DriverFault: it could not be made or started.
    """
    maker = "make_driver" if listener is None else "make_host"
    try:
        async with _one_host_at_a_time():
            making = _making(factory, env, maker)
            host = await making.__aenter__()
    except DriverFault:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        raise DriverFault(f"{maker} raised {described(exc)}") from exc
    failure: BaseException | None = None
    try:
        about = check_about(host, is_served=listener is None)
        try:
            async with nullcontext() if listener is None else serve(host.app, listener):
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


def load_factory(name: str) -> Factory:
    """Import a factory.

    Args:
        name: ``package.module:attribute``.

    Raises:
        DriverFault: the factory was not found; the message says what is missing.
    """
    module, separator, attribute = name.partition(":")
    if not separator or not module or not attribute:
        raise DriverFault(f"name the factory as package.module:make_host, not {name!r}")
    try:
        found: Any = importlib.import_module(module)
    except Exception as exc:
        raise DriverFault(f"{module} cannot be imported: {type(exc).__name__}: {exc}") from exc
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise DriverFault(f"{module} has no {attribute}") from None
    if not callable(found):
        raise DriverFault(f"{name} is not a function")
    factory: Factory = found
    return factory


class _Making:
    lock = threading.Lock()


@asynccontextmanager
async def _one_host_at_a_time() -> AsyncIterator[None]:
    """Wait until no other host of this process is being made; one that hangs meanwhile is not waited for.

    Frameworks have handlers in module globals, and two apps that register them at once, in two threads, fail.
    """
    lock = _Making.lock
    held = await asyncio.to_thread(lock.acquire, timeout=MAKING_SECONDS)
    if not held and _Making.lock is lock:
        _Making.lock = threading.Lock()
    try:
        yield
    finally:
        if held:
            lock.release()


def _making(factory: Factory, env: Env, maker: str) -> AbstractAsyncContextManager[HostDriver]:
    try:
        made: Any = factory(env)
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        raise DriverFault(f"{maker} raised {described(exc)}") from exc
    if hasattr(made, "__aenter__"):
        manager: AbstractAsyncContextManager[HostDriver] = made
        return manager
    if inspect.iscoroutine(made):
        made.close()
    raise DriverFault(
        f"{maker} must return an async context manager: decorate it with contextlib.asynccontextmanager"
    )
