"""``serve-env``: serves what a host talks to that somebody else starts, and hands it over to ``run --env``."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
import tempfile
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from flowactions_conformance.commands import Wrong
from flowactions_conformance.commands.run import check_database, read_url
from flowactions_conformance.kit.bench import Bench, Listeners
from flowactions_conformance.kit.hand_over import desk, hand_over, written
from flowactions_conformance.kit.hosts.databases import Databases
from flowactions_conformance.kit.outcomes import DriverFault, NothingKnown
from flowactions_conformance.serving import listen, stopped, url_of
from flowactions_conformance.variables import DATABASE, DESK, PROBE, PROBE_TOKEN

_T = TypeVar("_T")

HEAD: Final = """\
# The environment of your host, for as long as serve-env runs. Start the host with it, and then:
#   python -m flowactions_conformance run --env {file} --driver package.module:make_driver
"""


def serve_env(options: argparse.Namespace) -> int:
    """Run the command until Ctrl+C.

    Returns:
        0: it was stopped.

    Raises:
        Wrong: the command line is wrong, or the database refuses.
    """
    check_database(options.database)
    try:
        asyncio.run(_serve(read_url(options.url), options.database, options.file, inbound=options.inbound))
    except (DriverFault, NothingKnown) as exc:
        raise Wrong(str(exc)) from exc
    return 0


async def _serve(url: str, server: str | None, file: Path, *, inbound: bool) -> None:
    stopping = stopped()
    databases, bench = Databases(server), Bench()
    await databases.look()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowactions-conformance-")))
        stack.push_async_callback(databases.drop_all)
        plugins, hosts = await databases.new(folder)
        ports = [stack.enter_context(listen()) for _ in Listeners._fields]
        bench.control.url, _, bench.provider_url = map(url_of, ports)
        runs = await stack.enter_async_context(desk(folder / "desk"))
        _write(
            file,
            {
                **bench.settings(plugins, url, inbound=inbound),
                PROBE: bench.control.url,
                PROBE_TOKEN: bench.control.token,
                DATABASE: hosts,
                DESK: str(folder / "desk"),
            },
        )
        stack.callback(file.unlink, missing_ok=True)
        while not stopping.is_set():
            async with bench.serving(Listeners(*(each.dup() for each in ports))):
                run = await _unless(stopping, runs.get())
            if run is not None:
                # The ports stay open, and whoever connects meanwhile waits for the run to answer.
                await _unless(stopping, hand_over(run, bench.control, ports))


def _write(file: Path, environment: dict[str, str]) -> None:
    try:
        file.touch(0o600)
        file.chmod(0o600)  # it may have been there
        file.write_text(f"{HEAD.format(file=shlex.quote(str(file)))}{written(environment)}", encoding="utf-8")
    except OSError as exc:
        raise Wrong(f"the environment cannot be written to {file}: {exc.strerror}") from exc
    sys.stdout.write(f"The environment of your host is in {file}, until you press Ctrl+C.\n")
    sys.stdout.flush()


async def _unless(stopping: asyncio.Event, awaitable: Coroutine[Any, Any, _T]) -> _T | None:
    """Return what comes, or ``None`` when the command is stopped before."""
    task, end = asyncio.create_task(awaitable), asyncio.create_task(stopping.wait())
    await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        end.cancel()
        return task.result()
    task.cancel()
    return None
