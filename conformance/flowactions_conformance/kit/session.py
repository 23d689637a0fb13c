"""One run of the kit: receiver, chat provider, control, databases, and the hosts that checks start."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from flowactions_conformance.kit.bench import AUTH_SECRET, Bench
from flowactions_conformance.kit.hand_over import ServedAt, borrowed
from flowactions_conformance.kit.hosts.databases import Databases
from flowactions_conformance.kit.hosts.hosting import Running, load_factory
from flowactions_conformance.kit.hosts.in_process import InProcess
from flowactions_conformance.kit.hosts.limits import Machine, Patience
from flowactions_conformance.kit.hosts.output import LogLines, Output
from flowactions_conformance.kit.hosts.processes import ChildProcess
from flowactions_conformance.kit.hosts.served import Served
from flowactions_conformance.kit.outcomes import DriverFault, NotTestable
from flowactions_conformance.kit.probing.plugin import HOST_SETTING, write_probe
from flowactions_conformance.kit.tested import distribution_of, running_on
from flowactions_conformance.kit.under_test import MARK, Env, Factory
from flowactions_conformance.serving import listen, url_of
from flowactions_conformance.variables import DATABASE, PROBE, PROBE_TOKEN

Mode: TypeAlias = Literal["in-process", "child", "served"]
PLUGINS_DATABASE = "FLOWACTIONS_DATABASE_URL"


class Host(NamedTuple):
    """A host that a check has started, or the one that all share.

    Attributes:
        name: in the probe's reports.
        running: the host itself.
        reports_at_start: how many reports of the probe there were when it had started.
        met: whether somebody else had started it before the run: of what its processes did then, not all may be known.
    """

    name: str
    running: Running
    reports_at_start: int = 0
    met: bool = False

    @property
    def url(self) -> str:
        """Where the app is served, without the prefix."""
        return self.running.env.base_url

    @property
    def prefix(self) -> str:
        """Below which the plugin's routes are."""
        return self.running.about.prefix


class Session(Bench):
    """What all checks of a run share.

    Args:
        factory: the function, or its name as ``package.module:attribute``; of a served host, it makes the driver.
        server: the URL of a PostgreSQL; ``None``: SQLite.
        output: what hosts print.
        time_scale: of all limits.
        served: a host that somebody else has started; ``None``: the factory makes it.
        seed: of all values that are drawn; ``None``: another one in each run.

    Attributes:
        mode: how hosts run unless a check says otherwise.
        causes: what was found already → the check that says so.
        takes_events: whether hosts are started with the secret of the auth provider's events.
        kill_lock: held while a process is killed, and while webhooks are awaited that it could take along.
    """

    def __init__(
        self,
        factory: Factory | str,
        *,
        server: str | None = None,
        output: Output | None = None,
        time_scale: float = 1.0,
        served: ServedAt | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(None if served is None else served.environ[PROBE_TOKEN])
        self.mode: Mode = "in-process" if served is None else "served"
        self.seed = secrets.randbelow(10**6) if seed is None else seed
        self.causes: dict[str, str] = {}
        self.served = served
        self.machine = Machine()
        self.patience = Patience(time_scale, self.machine.slowness)
        if served is not None and "+asyncpg" in served.environ[DATABASE]:
            server = served.environ[PLUGINS_DATABASE]
        self.databases = Databases(server)
        self.claims: frozenset[str] = frozenset()
        self.lacks: frozenset[str] = frozenset()
        self.takes_events = False
        self.output = output or Output()
        self.kill_lock = asyncio.Lock()
        self.processes: dict[int, asyncio.Task[Host]] = {}
        self._factory = factory
        self._making = asyncio.Lock()
        self._folder = Path()
        self._hosts: list[Running] = []
        self._stopping: set[asyncio.Task[None]] = set()
        self._present: Host | None = None

    @property
    def factory_name(self) -> str:
        """``package.module:attribute``."""
        if isinstance(self._factory, str):
            return self._factory
        module = getattr(self._factory, "__module__", "?")
        return f"{module}:{getattr(self._factory, '__qualname__', type(self._factory).__name__)}"

    def tested(self) -> dict[str, str]:
        """Return what the run tests, by name; of a served host, what the probe has said."""
        host, on = distribution_of(self.factory_name.partition(":")[0]), running_on()
        if self.served is not None:
            said = [event.data["on"] for event in self.control.events if event.kind == "loaded"]
            host, on = "runs elsewhere", said[-1] if said else {}
        return {"host": host, **on, "database": self.databases.version}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Session]:
        """Everything but hosts is there while this is open; the hosts are ended with it.

        Raises:
            DriverFault: the factory cannot be imported, or a served host's `serve-env` does not hand over.
        """
        # What is for a host that somebody else has started must not have a host or a driver in this process load a probe.
        for name in (PROBE, PROBE_TOKEN):
            os.environ.pop(name, None)
        async with AsyncExitStack() as stack:
            if self.served is None:
                await stack.enter_async_context(self.serving())
            else:
                self.control.present = secrets.token_hex(4)
                listeners = await stack.enter_async_context(borrowed(self.served.environ, self.control))
                self.auth_secret = self.served.environ.get(AUTH_SECRET, self.auth_secret)
                await stack.enter_async_context(self.serving(listeners))
            await self.databases.look()
            temporary = tempfile.TemporaryDirectory(
                prefix="flowactions-conformance-", ignore_cleanup_errors=True
            )
            self._folder = Path(stack.enter_context(temporary))
            if self.served is None:
                self._write_probe(stack)
            if isinstance(self._factory, str):
                # Also when all hosts are child processes: what cannot be imported is said before any is started.
                sys.path.insert(0, str(Path.cwd()))
                stack.callback(_remove, sys.path, str(Path.cwd()))
            factory = self._loaded()
            if self.served is None and getattr(factory, MARK, False):
                self.mode = "child"
            handler = LogLines(self.output)
            logging.getLogger().addHandler(handler)
            stack.callback(logging.getLogger().removeHandler, handler)
            stack.push_async_callback(self._end)
            if self.served is not None:
                self._present = await self._meet(self.served)
            yield self

    async def start(
        self,
        *,
        beside: Host | None = None,
        child: bool = False,
        chat: bool = True,
        settings: dict[str, str] | None = None,
    ) -> Host:
        """Start a host.

        Args:
            beside: a host whose state and databases this one shares: one more process of the same host, or the same
                host after it was stopped or killed.
            child: whether to start it in a process of its own, even if the other hosts share one.
            chat: whether the settings of chat are given.
            settings: further ones.

        Raises:
            DriverFault: it did not start.
            NotTestable: it cannot be started as a child.
        """
        if self._present is not None:
            return self._present  # stop() and kill() start it again
        name = secrets.token_hex(4)
        if beside is None:
            state, incarnation = self._folder / name / "state", 1
            state.mkdir(parents=True)
            plugins, hosts = await self.databases.new(state.parent)
        else:
            env = beside.running.env
            state, incarnation = env.state_dir, env.incarnation + 1
            plugins, hosts = env.settings[PLUGINS_DATABASE], env.database_url
        as_child = child or self.mode == "child"
        if as_child:
            self._check_importable()
        listener = listen()
        url = url_of(listener)
        given = self.settings(plugins, url, chat=chat, inbound=self.takes_events)
        env = Env(
            settings={**given, **(settings or {}), HOST_SETTING: name},
            base_url=url,
            state_dir=state,
            database_url=hosts,
            incarnation=incarnation,
        )
        running: InProcess | ChildProcess
        if as_child:
            path = [str(self._folder / "probe")]
            running = ChildProcess(self.factory_name, env, listener, path, self.patience, self.output)
        else:
            running = InProcess(self._loaded(), env, listener, self.patience, self.output)
        # Frameworks have handlers in module globals: two apps that register them at once, in two threads, fail.
        async with nullcontext() if as_child else self._making:
            self._hosts.append(running)
            await running.start()
        return Host(name, running, len(self.control.events))

    def release(self, hosts: Iterable[Host]) -> None:
        """Stop hosts that a check has started for itself, while other checks run.

        Each keeps several idle connections. The hosts of all checks together would use up those of a PostgreSQL server.
        """
        for host in hosts:
            self._hosts.remove(host.running)
            task = asyncio.create_task(_stop(host.running))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)

    async def until_released(self) -> None:
        """Wait until the hosts of checks that are over have stopped."""
        await asyncio.gather(*self._stopping)

    def _loaded(self) -> Factory:
        return load_factory(self._factory) if isinstance(self._factory, str) else self._factory

    def _check_importable(self) -> None:
        try:
            load_factory(self.factory_name)
        except DriverFault as exc:
            raise NotTestable(
                f"a child process cannot import the factory ({exc}): define it at the top of an importable module"
            ) from exc

    async def _meet(self, served: ServedAt) -> Host:
        """Make the driver of a host that somebody else has started.

        Raises:
            DriverFault: it cannot be made.
        """
        # The settings of the host, and what else it has been given for the kit; the rest of the file is for the run.
        env = Env(
            settings={**served.environ},
            base_url=served.environ["BACKEND_PUBLIC_URL"],
            state_dir=self._folder,
            database_url=served.environ[DATABASE],
        )
        driver = InProcess(self._loaded(), env, None, self.patience, self.output)
        self._hosts.append(driver)
        await driver.start()

        def host(*, met: bool) -> Host:
            return Host(self.control.present or "", Served(driver, again), len(self.control.events), met)

        async def again(method: str) -> None:
            # From here on a process that has not reported before belongs to the next start.
            self.control.present = secrets.token_hex(4)
            before = len(self.control.events)
            try:
                await driver.call(method)
            finally:
                self._present = host(met=False)
            if not any(event.kind == "opened" for event in self.control.events[before:]):
                raise NotTestable(
                    f"{method}() has no effect: no process of the host has started since it was called"
                )

        return host(met=True)

    def _write_probe(self, stack: AsyncExitStack) -> None:
        name, folder = f"flowactions_probe_{secrets.token_hex(4)}", self._folder / "probe"
        folder.mkdir()
        write_probe(folder, self.control.url, self.control.token, name)
        sys.path.insert(0, str(folder))
        stack.callback(sys.modules.pop, name, None)
        stack.callback(_remove, sys.path, str(folder))

    async def _end(self) -> None:
        for starting in self.processes.values():
            starting.cancel()
        await asyncio.gather(*self.processes.values(), return_exceptions=True)
        # At once: hosts that hang are waited for together.
        await asyncio.gather(*self._stopping, *map(_stop, self._hosts))
        with suppress(DriverFault):
            await self.databases.drop_all()


async def _stop(running: Running) -> None:
    with suppress(Exception):  # no check tests this stop
        await running.stop(judged=False)


def _remove(path: list[str], folder: str) -> None:
    with suppress(ValueError):
        path.remove(folder)
