"""What the commands of ``flowactions`` do (``worker``, ``migrate``, ``reseal``); `cli` parses their arguments."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Final

from flowactions_hookspecs import (
    FlowActions,
    FlowActionsError,
    Host,
    HostInvalid,
    SettingsInvalid,
    StartFailed,
)
from flowactions_hookspecs.host_check import check_host
from flowactions_hookspecs.tasks import Supervisor
from flowactions_plugin.chat.reseal import reseal
from flowactions_plugin.chat.service import keys_of
from flowactions_plugin.chat.store import ConnectionStore
from flowactions_plugin.errors import CannotRun, SchemaNewer, StorageMisplaced
from flowactions_plugin.services import Services
from flowactions_plugin.settings import read_settings
from flowactions_plugin.storage.database import Database

log = logging.getLogger("flowactions.cli")


def run(options: argparse.Namespace) -> int:
    """Run a command.

    Args:
        options: the parsed arguments.

    Returns:
        The exit status, as of `flowactions_plugin.cli.main`.
    """
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every check of the tables
    try:
        with asyncio.Runner(loop_factory=_loop_factory(options.command)) as runner:
            return int(runner.run(_COMMANDS[options.command](options)))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except FlowActionsError as exc:
        message, status = str(exc), _status(exc)
    except Exception as exc:  # printed in the same form as all others
        message, status = f"failed unexpectedly: {_summary(exc)}", 1
        log.debug("failed unexpectedly", exc_info=True)
    print(f"flowactions: {' '.join(message.split())}", file=sys.stderr)
    return status


def _loop_factory(command: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns what makes the event loop: uvloop's for workers, where the extra ``fast`` is installed."""
    if command != "worker":
        return None
    try:
        import uvloop  # noqa: PLC0415  optional
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _status(exc: FlowActionsError) -> int:
    if isinstance(exc, SchemaNewer):
        return 3
    return 2 if isinstance(exc, (CannotRun, HostInvalid, SettingsInvalid, StorageMisplaced)) else 1


def _summary(exc: BaseException) -> str:
    """Returns an error's type and location, without its message, which may hold a secret."""
    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith("<")]
    place = (exc.filename, exc.lineno) if isinstance(exc, SyntaxError) else None
    if place is None and frames:
        place = (frames[-1].filename, frames[-1].lineno)
    what = (
        f"{type(exc).__name__} of {exc.name!r}" if isinstance(exc, ModuleNotFoundError) else type(exc).__name__
    )
    return f"{what} in {place[0]}, line {place[1]}; --log-level debug shows more" if place else what


async def _worker(options: argparse.Namespace) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop_once() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        # Logged after the handlers are removed, so that it is true when it is read.
        log.info("stopping: what is being sent is finished first; a second signal ends the process at once")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_once)
    async with _opened_host(options.host) as host:
        actions = FlowActions.load(host)
        tasks = actions.plugin_state(Services).tasks_left_to_workers()
        try:
            async with actions.lifespan(), Supervisor(tasks):
                log.info("worker %s delivers", os.getpid())
                await stop.wait()
        except StartFailed as exc:
            # The plugin's own error says what to do, and its kind is the exit status.
            raise (exc.__cause__ if isinstance(exc.__cause__, FlowActionsError) else exc) from None
    log.info("worker %s has stopped", os.getpid())
    return 0


async def _migrate(options: argparse.Namespace) -> int:
    async with contextlib.AsyncExitStack() as stack:
        if options.host is None:
            database = Database(read_settings(os.environ).database_url)
        else:
            host = await stack.enter_async_context(_opened_host(options.host))
            database = Database(read_settings(host.settings).database_url, host.database)
        before, wanted = await database.migrate(dry=options.check)
    if options.check:
        print(f"tables at {before or 'none'}, this release at {wanted}")
        return 0 if before == wanted else 1
    print(f"tables at {wanted}" if before == wanted else f"tables brought from {before or 'none'} to {wanted}")
    return 0


async def _reseal(options: argparse.Namespace) -> int:
    async with contextlib.AsyncExitStack() as stack:
        host = None if options.host is None else await stack.enter_async_context(_opened_host(options.host))
        settings = read_settings(os.environ if host is None else host.settings)
        database = Database(settings.database_url, None if host is None else host.database)
        keys = keys_of(settings, database)
        stack.push_async_exit(database)
        await database.open(required=True)
        done = await reseal(ConnectionStore(database), keys, dry=options.check)
    verb = "would be resealed" if options.check else "resealed"
    print(f"tokens {verb}: {done.changed}; under the newest key already: {done.current}")
    for organization_id in done.broken:
        print(
            f"flowactions: no key opens the token of organization {organization_id}: add the key that is missing, "
            "or let the organization reconnect",
            file=sys.stderr,
        )
    return 1 if done.broken or (options.check and done.changed) else 0


@contextlib.asynccontextmanager
async def _opened_host(location: str) -> AsyncIterator[Host]:
    with _errors_in(f"the host {location} could not be made"):
        made = _imported(location)
        if callable(made) and not isinstance(made, Host):
            made = made()
        if inspect.isawaitable(made):
            made = await made
    async with contextlib.AsyncExitStack() as stack:
        if not isinstance(made, Host) and hasattr(made, "__aenter__"):
            context = made
            with _errors_in(f"the host {location} could not be opened"):
                made = await context.__aenter__()
            stack.push_async_exit(partial(_close, location, context))
        if not isinstance(made, Host):
            raise CannotRun(f"{location} gives {type(made).__name__}, not a Host")
        yield check_host(made)


async def _close(location: str, context: Any, kind: Any, exc: BaseException | None, trace: Any) -> Any:
    try:
        return await context.__aexit__(kind, exc, trace)
    except Exception as raised:
        if raised is exc:
            raise
        with _errors_in(f"the host {location} could not be closed"):
            raise


@contextlib.contextmanager
def _errors_in(what: str) -> Iterator[None]:
    """Translate exceptions of the host's own code into one line."""
    try:
        yield
    except FlowActionsError:
        raise
    except (Exception, SystemExit) as exc:
        log.debug(what, exc_info=True)
        raise CannotRun(f"{what}: {_summary(exc)}") from exc


def _imported(location: str) -> Any:
    module_name, separator, path = location.partition(":")
    if not separator or not module_name or not path:
        raise CannotRun(f"{location!r} does not say where the host is; write it as 'package.module:name'")
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  compared with strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109  so that modules there are found first, as with 'python -m'
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
            raise  # the module exists, and one of its imports does not
        raise CannotRun(f"there is no module {exc.name!r} to import from here") from exc
    for name in path.split("."):
        if not hasattr(found, name):
            raise CannotRun(f"{module_name} has no {path!r}")
        found = getattr(found, name)
    return found


_COMMANDS: Final[Mapping[str, Callable[[argparse.Namespace], Coroutine[Any, Any, int]]]] = {
    "worker": _worker,
    "migrate": _migrate,
    "reseal": _reseal,
}
