"""Runs a host: what every way of running one has in common."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import importlib
import inspect
import re
import socket
import traceback
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_type_hints

import msgspec

from flowactions_conformance.kit.hosts.limits import SECONDS, Late, Patience
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.under_test import Env, Factory, HostDriver, Wire
from flowactions_conformance.serving import serve

T = TypeVar("T")

SERVER_ERRORS: Final = 500
ANSWER_LINES: Final = 5
NOT_JSON: Final = (bytes, bytearray, memoryview, uuid.UUID, decimal.Decimal, dt.datetime, dt.date)
"""What msgspec would turn into text by itself, though a driver should not return it."""

CORE: Final = ("app", "seed", "palette", "open", "next", "headers")
"""What every host's driver must have."""
RESTARTS: Final = ("restart", "kill")
"""Methods by which the driver of a served host starts it again."""
OPTIONAL: Final = frozenset({"fail_database", "failed_commits", *RESTARTS})
"""Methods without which a check is only not tried."""
IN_PROCESS: Final = frozenset({"fail_commit", "fail_database", "fail_auth_event"})
"""Those that reach into the host's process: the driver of a served host may leave them out."""
RETURNED: Final[Mapping[str, str]] = {
    "seed": "a dict of kit ids to your ids",
    "palette": "a list of node types as dicts, as NodeType.describe() gave them",
    "open": "a Turn(session, step_id, done, halted, raw)",
    "next": "a Turn(session, step_id, done, halted, raw)",
    "headers": "a dict of header names to values",
    "save": "a list of config problems as dicts",
    "preview": "the preview as a dict",
    "handled": "a whole number",
    "failed_commits": "a whole number",
}
"""What a method has to return, in words."""
MAY_LACK: Final = ("branch", "subflow")
"""Kinds of items of a world that a host may lack that claims ``loops``."""


@cache
def types_of(method: str) -> tuple[tuple[Any, ...], Any]:
    """Return the types of the arguments of a driver's method, and of what it returns: as they cross a process boundary."""
    hints = get_type_hints(getattr(HostDriver, method))
    returns = hints.pop("return")
    return tuple(hints.values()), returns


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
        patience: how it is waited for.
        output: what it prints and logs.

    Attributes:
        about: what the driver says of it.
        patience: how it is waited for.
        left_at: when the block of ``make_host`` had ended, in monotonic seconds; ``None`` before, and when it was killed.
    """

    def __init__(self, env: Env, patience: Patience, output: Output) -> None:
        self.env = env
        self.about = About()
        self.output = output
        self.left_at: float | None = None
        self.patience = patience
        self._hung = False

    @abstractmethod
    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the driver.

        Raises:
            DriverFault: it raised, returned something else than it should, or did not end in time.
            NotImplementedError: the driver does not have it.
        """

    @abstractmethod
    async def stop(self, *, judged: bool = True) -> None:
        """Stop it as a server does on SIGTERM.

        Args:
            judged: whether the result is used. If not, the host is ended at the limit, also on a slow machine.

        Raises:
            DriverFault: it did not end in time.
        """

    @abstractmethod
    async def kill(self) -> None:
        """End its process with SIGKILL.

        Raises:
            NotImplementedError: it runs in the kit's own process.
        """

    async def _started(self, starting: Awaitable[About]) -> None:
        """Wait until it has started."""
        self.about = await self._within(
            "start", starting, "the host did not start", "make_host, or the lifespan of its app, hangs"
        )

    async def _returned(self, method: str, returning: Awaitable[T]) -> T:
        """Wait until a method of the driver has returned; one that restarts a host has the time of a stop and a start."""
        what, at_least = "call", 0.0
        if method in RESTARTS:
            at_least = SECONDS["stop"] + SECONDS["start"]
        return await self._within(
            what, returning, f"{method}() of the driver did not return", at_least=at_least
        )

    async def _within(
        self, what: str, awaited: Awaitable[T], otherwise: str, why: str = "", at_least: float = 0.0
    ) -> T:
        try:
            came = await self.patience.wait(awaited, what, at_least=at_least)
        except Late as late:
            self._hung = True
            why = f": {why}" if why else ""
            raise DriverFault(
                f"{otherwise} within {late.seconds:g} seconds{why}{await self._place()}"
            ) from None
        self._hung = False
        return came

    async def _stopped(
        self, stopping: Awaitable[T], give_up: Callable[[], Awaitable[None]], *, judged: bool
    ) -> T:
        """Wait until it has stopped; if it does not in time, end it in another way."""
        try:
            return await self.patience.wait(stopping, "stop", hung=self._hung, judged=judged)
        except Late as late:
            place = await self._place()
            await give_up()
            raise DriverFault(f"the host did not stop within {late.seconds:g} seconds{place}") from None

    async def _place(self) -> str:
        """Return where the host is blocked, as the end of a sentence; empty, if that is not known."""
        return ""


def check_about(host: Any, *, is_served: bool = False) -> About:
    """Read what a driver says of its host.

    Args:
        host: the driver.
        is_served: whether somebody else serves the host: then it needs no ``app``.

    Raises:
        DriverFault: it is not a `HostDriver`, or does not do its part.
    """
    name, maker = type(host).__name__, "make_driver" if is_served else "make_host"
    if not isinstance(host, HostDriver):
        raise DriverFault(
            f"{name}, which {maker} yields, is no driver: derive it from flowactions_conformance.HostDriver"
        )
    missing = [
        f"{each}: {_duty(each)}"
        for each in CORE
        if is_stub(getattr(host, each)) and not (is_served and each == "app")
    ]
    if missing:
        raise DriverFault(
            f"{name}, which {maker} yields, does not do its part yet. It lacks\n  " + "\n  ".join(missing)
        )
    claims, prefix, edits, lacks = (getattr(host, each) for each in ("claims", "prefix", "edits", "lacks"))
    if isinstance(claims, str) or not all(isinstance(claim, str) for claim in claims):
        raise DriverFault(f"claims of {name} must be a set of profile names, not {claims!r}")
    if not isinstance(prefix, str) or (prefix and (not prefix.startswith("/") or prefix.endswith("/"))):
        raise DriverFault(f"prefix of {name} must be empty or like '/api', not {prefix!r}")
    if edits not in {"pinned", "live", None}:
        raise DriverFault(f"edits of {name} must be 'pinned', 'live' or None, not {edits!r}")
    if isinstance(lacks, str) or not set(lacks) <= set(MAY_LACK):
        raise DriverFault(f"lacks of {name} must be a set of {', '.join(map(repr, MAY_LACK))}, not {lacks!r}")
    return About(
        claims=tuple(sorted(claims)),
        prefix=prefix,
        edits=edits,
        lacks=tuple(sorted(lacks)),
        restarts=tuple(each for each in RESTARTS if not is_stub(getattr(host, each))),
    )


def _duty(name: str) -> str:
    """Return what a part of the driver does, in the words of its reference."""
    if name == "app":
        return "The ASGI app, with the plugin's routes and lifespan mounted."
    return (getattr(HostDriver, name).__doc__ or "").strip().partition("\n")[0]


def is_stub(member: object) -> bool:
    """Return whether a method only raises ``NotImplementedError``; also ``app`` that is None.

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
    try:
        returned = getattr(host, name)(*arguments)
        if isinstance(returned, Awaitable):
            returned = await returned
    except (NotImplementedError, asyncio.CancelledError):
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as exc:
        raise DriverFault(f"{name}() of the driver raised {described(exc)}") from exc
    if name not in RETURNED:
        return None
    must = f"{name}() of the driver must return {RETURNED[name]}"
    try:
        converted: Any = msgspec.convert(
            msgspec.to_builtins(returned, builtin_types=NOT_JSON), types_of(name)[1]
        )
    except (msgspec.ValidationError, TypeError) as exc:
        raise DriverFault(f"{must}: {_misfit(exc)}") from exc
    if name == "headers":
        for header, value in converted.items():
            if not (header.isascii() and value.isascii() and header and (header + value).isprintable()):
                # What it holds signs somebody in, and is not shown.
                raise DriverFault(f"{must}: the name or value of {header!r} is none of HTTP's")
    result: object = converted
    return result


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
        making: Any = factory(env)
        if inspect.iscoroutine(making):
            making.close()
        if not hasattr(making, "__aenter__"):
            raise DriverFault(  # noqa: TRY301
                f"{maker} must return an async context manager: decorate it with contextlib.asynccontextmanager"
            )
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
