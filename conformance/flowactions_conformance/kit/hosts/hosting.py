"""Runs a host: what every way of running one has in common."""

from __future__ import annotations

import asyncio
import datetime as dt
import decimal
import inspect
import re
import socket
import traceback
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import httpx
import msgspec

from flowactions_conformance.kit import under_test
from flowactions_conformance.kit.hosts.making import one_host_at_a_time
from flowactions_conformance.kit.hosts.output import Output
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.probing.plugin import ROUTES
from flowactions_conformance.kit.under_test import Env, Factory, HostDriver, Wire
from flowactions_conformance.serving import NO_TLS, serve

SERVER_ERRORS: Final = 500
ANSWER_LINES: Final = 5
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


class Running(Protocol):
    """A host that was started."""

    about: About
    env: Env
    output: Output
    left_at: float | None
    """When the block of ``make_host`` had ended, in monotonic seconds; ``None`` before, and when it was killed."""

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the driver.

        Raises:
            DriverFault: it raised, returned something else than it should, or did not end in time.
            NotImplementedError: the driver does not have it.
        """
        ...

    async def stop(self, *, is_judged: bool = True) -> None:
        """Stop it as a server does on SIGTERM.

        Args:
            is_judged: whether anybody asks what came of it; else it is ended at its limit, also on a slow machine.

        Raises:
            DriverFault: it did not end in time.
        """
        ...

    async def echoes(self) -> bool:
        """Return whether the probe's echo route answers."""
        ...

    async def kill(self) -> None:
        """End its process with SIGKILL.

        Raises:
            NotTestable: it runs in the kit's own process.
        """
        ...


async def echo_answers(running: Running) -> bool:
    """Return whether the probe's echo route of a host answers, whatever it answers."""
    url = f"{running.env.base_url}{running.about.prefix}{ROUTES}/echo"
    async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=ECHO_SECONDS) as client:
        try:
            await client.get(url)
        except httpx.TransportError:
            return False
    return True


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
        async with one_host_at_a_time():
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
