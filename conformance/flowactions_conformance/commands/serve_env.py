"""``serve-env``: serves what a host talks to that somebody else starts, and hands it over to ``run --url``."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from flowactions_conformance.commands.run import WRONG, Wrong, check_database, read_url
from flowactions_conformance.kit.bench import Bench, Listeners
from flowactions_conformance.kit.hand_over import Desk, Handed, written
from flowactions_conformance.kit.hosts.databases import Databases
from flowactions_conformance.kit.hosts.leftovers import run_folder
from flowactions_conformance.kit.outcomes import DriverFault, NothingKnown
from flowactions_conformance.serving import listen, stopped, url_of
from flowactions_conformance.variables import DATABASE, PROBE, PROBE_TOKEN

_T = TypeVar("_T")

HEAD: Final = """\
# The environment of your host, for as long as this command runs. Start the host with it, and then:
#   python -m flowactions_conformance run --url {url}{env} --driver package.module:make_driver
# Press Ctrl+C to stop; then the databases are removed.
"""


def serve_env(options: argparse.Namespace) -> int:
    """Run the command until Ctrl+C.

    Returns:
        0: it was stopped. 2: the command line is wrong, or the database refuses.
    """
    try:
        check_database(options.database)
        asyncio.run(_serve(read_url(options.url), options.database, options.file, inbound=options.inbound))
    except (Wrong, DriverFault, NothingKnown) as exc:
        sys.stderr.write(f"flowactions_conformance: {exc}\n")
        return WRONG
    return 0


async def _serve(url: str, server: str | None, file: Path | None, *, inbound: bool) -> None:
    stopping = stopped()
    databases, bench = Databases(server), Bench()
    await databases.look()
    async with AsyncExitStack() as stack:
        folder = await stack.enter_async_context(run_folder(databases))
        stack.push_async_callback(databases.drop_all)
        place = await databases.new(folder)
        state = folder / "state"
        state.mkdir()
        ports = [stack.enter_context(listen()) for _ in Listeners._fields]
        bench.control.url, _, bench.provider_url = map(url_of, ports)
        settings = bench.settings(place, url, inbound=inbound)
        handed = Handed(
            settings=settings, url=url, state_dir=str(state), database_url=place.host, server=server, events=[]
        )
        desk = Desk(folder / "desk", bench)
        await stack.enter_async_context(desk.open())
        probe = {PROBE: bench.control.url, PROBE_TOKEN: bench.control.token, DATABASE: place.host}
        _tell({**settings, **probe}, url, file, stack)
        while not stopping.is_set():
            async with bench.serving(Listeners(*(each.dup() for each in ports))):
                run = await _unless(stopping, desk.asked())
            if run is not None:
                # The ports stay open, and whoever connects meanwhile waits for the run to answer.
                await _unless(stopping, desk.hand_over(run, handed, ports))


def _tell(environment: Mapping[str, str], url: str, file: Path | None, stack: AsyncExitStack) -> None:
    env = "" if file is None else f" --env {shlex.quote(str(file))}"
    text = f"{HEAD.format(url=url, env=env)}{written(environment)}"
    if file is None:
        sys.stdout.write(text)
    else:
        try:
            file.touch(0o600)
            file.chmod(0o600)  # it may have been there
            file.write_text(text, encoding="utf-8")
        except OSError as exc:
            raise Wrong(f"the environment cannot be written to {file}: {exc.strerror}") from exc
        stack.callback(file.unlink, missing_ok=True)
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
