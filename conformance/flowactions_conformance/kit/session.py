"""One run of the kit: receiver, chat provider, control, databases, and the hosts that checks start."""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from flowactions_conformance.chat_provider import FakeChatProvider, Workspace, sample_workspace
from flowactions_conformance.chat_provider.app import CLIENT_ID, CLIENT_SECRET, SIGNING_SECRET
from flowactions_conformance.kit.hosts.databases import Databases, Place
from flowactions_conformance.kit.hosts.factories import load_factory
from flowactions_conformance.kit.hosts.hosting import Running
from flowactions_conformance.kit.hosts.in_process import InProcess
from flowactions_conformance.kit.hosts.leftovers import run_folder
from flowactions_conformance.kit.hosts.limits import LIMITS, EffectTimeout, Limits, Patience
from flowactions_conformance.kit.hosts.machine import Machine
from flowactions_conformance.kit.hosts.output import LogLines, Output
from flowactions_conformance.kit.hosts.processes import ChildProcess
from flowactions_conformance.kit.outcomes import DriverFault, NotTestable
from flowactions_conformance.kit.probing.control import Control
from flowactions_conformance.kit.probing.folder import write_probe
from flowactions_conformance.kit.probing.plugin import HOST_SETTING
from flowactions_conformance.kit.under_test import Env, Factory
from flowactions_conformance.receiver import Arrival, Receiver
from flowactions_conformance.serving import listen, serve, url_of

Mode: TypeAlias = Literal["in-process", "child"]

TICK_SECONDS: Final = "0.1"


class Host:
    """A host that a check has started, or the one that all share.

    Attributes:
        name: in the probe's reports.
        running: the host itself.
        url: of the app, without the prefix.
        reports_at_start: how many reports of the probe there were when it had started.
    """

    def __init__(self, name: str, running: Running, place: Place, folder: Path, reports_at_start: int) -> None:
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


class Session:
    """What all checks of a run share.

    Args:
        factory: the function, or its name as ``package.module:attribute``.
        mode: how hosts run unless a check says otherwise.
        server: the URL of a PostgreSQL; ``None``: SQLite.
        effect_timeout: for how long effects are waited for.
        limits: how long a host may take.
        output: what hosts print.
        time_scale: of all limits.
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
    ) -> None:
        self.mode = mode
        self._limits = limits
        self._server = server
        self.patience = Patience(scale=time_scale)
        self.effect_timeout = effect_timeout or EffectTimeout()
        self.databases = Databases(server)
        self.control = Control()
        self.receiver = Receiver("", on_arrival=self._arrived)
        self.provider = FakeChatProvider([sample_workspace()])
        self.encryption_key = base64.b64encode(secrets.token_bytes(32)).decode()
        self.auth_secret = f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.arrivals: list[Arrival] = []
        self.receiver_url = ""
        self.provider_url = ""
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
        self._changes: set[asyncio.Task[None]] = set()

    @property
    def factory_name(self) -> str:
        """``package.module:attribute``."""
        if isinstance(self._factory, str):
            return self._factory
        module = getattr(self._factory, "__module__", "?")
        return f"{module}:{getattr(self._factory, '__qualname__', type(self._factory).__name__)}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Session]:
        """Everything but hosts is there while this is open; the hosts are ended with it.

        Raises:
            DriverFault: the factory cannot be imported.
        """
        async with AsyncExitStack() as stack:
            await self.databases.look()
            self._folder = await stack.enter_async_context(run_folder(self.databases))
            await stack.enter_async_context(self.control.running())
            self.receiver_url = await stack.enter_async_context(serve(self.receiver.app))
            self.provider_url = await stack.enter_async_context(serve(self.provider.app))
            # A host in the receiver's process could slow the receiver down: then the machine is not measured by it.
            machine = Machine(self.receiver_url if self.mode == "child" else None, self._server)
            await stack.enter_async_context(machine.running())
            self.patience = Patience(machine.slowness, self.patience.scale)
            self._write_probe(stack)
            handler = LogLines(self.output)
            logging.getLogger().addHandler(handler)
            stack.callback(logging.getLogger().removeHandler, handler)
            stack.push_async_callback(self._end)
            if isinstance(self._factory, str):
                # Also when all hosts are child processes: what cannot be imported is said before any is started.
                sys.path.insert(0, str(Path.cwd()))
                stack.callback(_remove, sys.path, str(Path.cwd()))
                load_factory(self._factory)
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
                **self._settings(place, url, tick_seconds, chat=chat),
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

    def _check_importable(self) -> None:
        try:
            load_factory(self.factory_name)
        except DriverFault as exc:
            raise NotTestable(
                f"a child process cannot import the factory ({exc}): define it at the top of an importable module"
            ) from exc

    def _settings(self, place: Place, url: str, tick_seconds: str, *, chat: bool) -> dict[str, str]:
        settings = {
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_DATABASE_URL": place.plugin,
            "FLOWACTIONS_TICK_SECONDS": tick_seconds,
            # Without it the plugin would make a file of its own, on PostgreSQL in whatever folder the kit is run in.
            "FLOWACTIONS_ENCRYPTION_KEYS": self.encryption_key,
            "BACKEND_PUBLIC_URL": url,
        }
        if "inbound" in self.claims:
            settings["AUTH_WEBHOOK_SIGNING_SECRET"] = self.auth_secret
        if chat:
            settings |= {
                "CHAT_CLIENT_ID": CLIENT_ID,
                "CHAT_CLIENT_SECRET": CLIENT_SECRET,
                "CHAT_SIGNING_SECRET": SIGNING_SECRET,
                "CHAT_API_URL": f"{self.provider_url}/api/",
                "CHAT_AUTHORIZE_URL": f"{self.provider_url}/oauth/v2/authorize",
            }
        return settings

    def _write_probe(self, stack: AsyncExitStack) -> None:
        name = f"flowactions_probe_{secrets.token_hex(4)}"
        self._probe_folder = self._folder / "probe"
        self._probe_folder.mkdir()
        write_probe(self._probe_folder, self.control.url, name)
        sys.path.insert(0, str(self._probe_folder))
        stack.callback(sys.modules.pop, name, None)
        stack.callback(_remove, sys.path, str(self._probe_folder))

    def _arrived(self, arrival: Arrival) -> None:
        self.arrivals.append(arrival)
        task = asyncio.create_task(self.control.changed())
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)

    def workspace(self) -> Workspace:
        """Make a workspace of the chat provider that nobody has connected."""
        number = secrets.token_hex(4).upper()
        workspace = sample_workspace(f"Workspace {number}", f"T{number}")
        self.provider.state.workspaces.append(workspace)
        return workspace

    async def _end(self) -> None:
        for starting in self.processes.values():
            starting.cancel()
        await asyncio.gather(*self.processes.values(), return_exceptions=True)
        # At once: hosts that hang are waited for together.
        await asyncio.gather(
            *(running.stop(is_judged=False) for running in self._hosts), return_exceptions=True
        )
        with suppress(DriverFault):
            await self.databases.drop_all()


def _remove(path: list[str], folder: str) -> None:
    with suppress(ValueError):
        path.remove(folder)
