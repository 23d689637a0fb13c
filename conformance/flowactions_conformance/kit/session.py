"""One run of the kit: receiver, chat provider, control, databases, and the hosts that checks start."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from flowactions_conformance.kit.bench import AUTH_SECRET, TICK_SECONDS, Bench
from flowactions_conformance.kit.hand_over import Address, Handed, borrowed
from flowactions_conformance.kit.hosts.databases import Databases, Place
from flowactions_conformance.kit.hosts.hosting import Running, load_factory
from flowactions_conformance.kit.hosts.in_process import InProcess
from flowactions_conformance.kit.hosts.leftovers import run_folder
from flowactions_conformance.kit.hosts.limits import LIMITS, EffectTimeout, Limits, Machine, Patience
from flowactions_conformance.kit.hosts.output import LogLines, Output
from flowactions_conformance.kit.hosts.processes import ChildProcess
from flowactions_conformance.kit.hosts.served import Served
from flowactions_conformance.kit.outcomes import DriverFault, NotTestable, Tested
from flowactions_conformance.kit.probing.plugin import HOST_SETTING, write_probe
from flowactions_conformance.kit.tested import tested
from flowactions_conformance.kit.under_test import MARK, Env, Factory
from flowactions_conformance.serving import listen, url_of
from flowactions_conformance.variables import DATABASE, PROBE, PROBE_TOKEN

Mode: TypeAlias = Literal["in-process", "child", "served"]


class ServedAt(NamedTuple):
    """A host that somebody else has started.

    Attributes:
        url: at which it is reached.
        address: of `serve-env`.
        env: the file that says it; ``None``: the environment does.
    """

    url: str
    address: Address
    env: Path | None = None


class Host:
    """A host that a check has started, or the one that all share.

    Attributes:
        name: in the probe's reports.
        running: the host itself.
        url: of the app, without the prefix.
        reports_at_start: how many reports of the probe there were when it had started.
        met: whether somebody else had started it before the run: of what its processes did then, not all may be known.
    """

    def __init__(
        self,
        name: str,
        running: Running,
        place: Place,
        folder: Path,
        reports_at_start: int,
        *,
        met: bool = False,
    ) -> None:
        self.met = met
        self.name = name
        self.running = running
        self.place = place
        self.folder = folder
        self.reports_at_start = reports_at_start

    @property
    def url(self) -> str:
        """Where the app is served."""
        return self.running.env.base_url

    @property
    def prefix(self) -> str:
        """Below which the plugin's routes are."""
        return self.running.about.prefix


class Session(Bench):
    """What all checks of a run share.

    Args:
        factory: the function, or its name as ``package.module:attribute``; of a served host, it makes the driver.
        mode: how hosts run unless a check says otherwise.
        server: the URL of a PostgreSQL; ``None``: SQLite.
        effect_timeout: for how long effects are waited for.
        limits: how long a host may take.
        output: what hosts print.
        time_scale: of all limits.
        served: where a host is, if the mode is ``served``.
        seed: of all values that are drawn; ``None``: another one in each run.
    """

    def __init__(
        self,
        factory: Factory | str,
        *,
        mode: Mode = "in-process",
        server: str | None = None,
        effect_timeout: EffectTimeout | None = None,
        limits: Limits = LIMITS,
        output: Output | None = None,
        time_scale: float = 1.0,
        served: ServedAt | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(None if served is None else served.address.token)
        self.mode = mode
        self.seed = secrets.randbelow(10**6) if seed is None else seed
        # What was found already → the check that says so.
        self.causes: dict[str, str] = {}
        self.served = served
        self._limits = limits
        self._server = server
        self.patience = Patience(scale=time_scale)
        self.effect_timeout = effect_timeout or EffectTimeout()
        self.databases = Databases(server)
        self.claims: frozenset[str] = frozenset()
        self.lacks: frozenset[str] = frozenset()
        self.output = output or Output()
        # Held while a process is killed, and while webhooks are awaited that it could take along.
        self.kill_lock = asyncio.Lock()
        self.processes: dict[int, asyncio.Task[Host]] = {}
        self._factory = factory
        self._folder = Path()
        self._probe_folder = Path()
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

    def tested(self) -> Tested:
        """Return what the run tests; of a served host, what the probe has said."""
        if self.served is None:
            return tested(self.factory_name, self.databases.version)
        said = [event.data["on"] for event in self.control.events if event.kind == "loaded"]
        return Tested(database=self.databases.version, **(said[-1] if said else {}))

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
            handed = None
            if self.served is None:
                await stack.enter_async_context(self.serving())
            else:
                self.control.present = secrets.token_hex(4)
                handed, listeners = await stack.enter_async_context(borrowed(self.served.address, self.control))
                self._server, self.databases = handed.server, Databases(handed.server)
                self.auth_secret = handed.settings.get(AUTH_SECRET, self.auth_secret)
                await stack.enter_async_context(self.serving(listeners))
            await self.databases.look()
            self._folder = await stack.enter_async_context(run_folder(self.databases))
            if handed is None:
                self._write_probe(stack)
            factory = self._factory
            if isinstance(factory, str):
                # Also when all hosts are child processes: what cannot be imported is said before any is started.
                sys.path.insert(0, str(Path.cwd()))
                stack.callback(_remove, sys.path, str(Path.cwd()))
                factory = load_factory(factory)
            if self.mode == "in-process" and getattr(factory, MARK, False):
                self.mode = "child"
            self.patience = Patience(Machine().slowness, self.patience.scale)
            handler = LogLines(self.output)
            logging.getLogger().addHandler(handler)
            stack.callback(logging.getLogger().removeHandler, handler)
            stack.push_async_callback(self._end)
            if handed is not None:
                self._present = await self._meet(handed)
            yield self

    async def start(
        self,
        *,
        beside: Host | None = None,
        tick_seconds: str = TICK_SECONDS,
        mode: Mode | None = None,
        chat: bool = True,
        settings: dict[str, str] | None = None,
    ) -> Host:
        """Start a host.

        Args:
            beside: a host whose state and databases this one shares: one more process of the same host, or the same
                host after it was stopped or killed.
            tick_seconds: between two deliveries.
            mode: in this process or as a child; the session's by default.
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
            folder = self._folder / name
            (folder / "state").mkdir(parents=True)
            place = await self.databases.new(folder)
        else:
            folder, place = beside.folder, beside.place
        listener = listen()
        url = url_of(listener)
        env = Env(
            settings={
                **self.settings(place, url, tick_seconds, chat=chat, inbound="inbound" in self.claims),
                **(settings or {}),
                HOST_SETTING: name,
            },
            base_url=url,
            state_dir=folder / "state",
            database_url=place.host,
            incarnation=1 if beside is None else beside.running.env.incarnation + 1,
        )
        limits = self._limits._replace(stop=min(self._limits.stop, self.effect_timeout.stop_seconds))
        running: InProcess | ChildProcess
        if (mode or self.mode) == "child":
            try:
                self._check_importable()
            except NotTestable:
                listener.close()
                raise
            running = ChildProcess(
                self.factory_name, env, listener, [str(self._probe_folder)], limits, self.patience
            )
        else:
            factory = load_factory(self._factory) if isinstance(self._factory, str) else self._factory
            running = InProcess(factory, env, listener, limits, self.patience)
        running.output = self.output
        self._hosts.append(running)
        await running.start()
        return Host(name, running, place, folder, len(self.control.events))

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

    def _check_importable(self) -> None:
        try:
            load_factory(self.factory_name)
        except DriverFault as exc:
            raise NotTestable(
                f"a child process cannot import the factory ({exc}): define it at the top of an importable module"
            ) from exc

    async def _meet(self, handed: Handed) -> Host:
        """Make the driver of a host that somebody else has started.

        Raises:
            DriverFault: it cannot be made, or nothing answers at the host's address.
        """
        served = self.served
        assert served is not None  # noqa: S101  else nothing was handed over
        if handed.url != served.url:
            raise DriverFault(
                f"serve-env got --url {handed.url}, and run got {served.url}: give both the same one"
            )
        given = {PROBE: served.address.url, PROBE_TOKEN: served.address.token, DATABASE: handed.database_url}
        env = Env(
            settings={**handed.settings, **given},
            base_url=served.url,
            state_dir=Path(handed.state_dir),
            database_url=handed.database_url,
        )
        factory = load_factory(self._factory) if isinstance(self._factory, str) else self._factory
        driver = InProcess(factory, env, None, self._limits, self.patience)
        driver.output = self.output
        self._hosts.append(driver)
        await driver.start()
        place = Place(plugin=handed.settings["FLOWACTIONS_DATABASE_URL"], host=handed.database_url)

        def host(*, met: bool) -> Host:
            name = self.control.present or ""
            return Host(name, Served(driver, again), place, env.state_dir, len(self.control.events), met=met)

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
        name = f"flowactions_probe_{secrets.token_hex(4)}"
        self._probe_folder = self._folder / "probe"
        self._probe_folder.mkdir()
        write_probe(self._probe_folder, self.control.url, self.control.token, name)
        sys.path.insert(0, str(self._probe_folder))
        stack.callback(sys.modules.pop, name, None)
        stack.callback(_remove, sys.path, str(self._probe_folder))

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
        await running.stop(is_judged=False)


def _remove(path: list[str], folder: str) -> None:
    with suppress(ValueError):
        path.remove(folder)
