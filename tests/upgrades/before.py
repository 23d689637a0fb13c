"""Processes of an earlier revision, for tests of upgrades that roll.

``0004/packages.tar.xz`` holds the packages of its last commit: ``git archive 0e46383 flowactions_plugin hookspecs | xz``. They
run with this environment's libraries.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

ARCHIVE = Path(__file__).parent / "0004" / "packages.tar.xz"

HOST = """
import json, os, sys
from flowactions_hookspecs import Deferred, FlowActions, Host, Node, Walk


class Shop(Host):
    settings = os.environ

    async def dashboard_principal(self, request):
        return None

    async def signing_secret(self, origin):
        return "whsec_rolling"


def walk(run, **more):
    return Walk(organization_id="o", agent_id="a", flow_id="f", run_id=run, **more)


def node(url):
    return Node(id="n", type="webhook", config={"webhookUrl": url, "webhookBody": "{}"})


async def enqueue(actions, name, count, url):
    for number in range(count):
        result = await actions.reach(walk(f"{name}-{number}"), node(url))
        assert result.status == "queued", result


async def record(actions, run, url):
    return (await actions.reach(walk(run, pacing=Deferred("s")), node(url))).status


async def advance(actions, run):
    advanced = await actions.advance(walk(run), "s")
    return [advanced.state, len(advanced.results)]


async def call(calls):
    actions = FlowActions.load(Shop())
    async with actions.lifespan(tasks=False):
        return [await globals()[name](actions, *arguments) for name, *arguments in calls]


if __name__ == "__main__":
    import asyncio

    print(json.dumps(asyncio.run(call(json.loads(sys.argv[1])))))
"""


class Release:
    """The packages of a revision, and processes that use them.

    Args:
        folder: an empty folder, for its packages and the logs of its workers.
        settings: of its host.
        packages: an archive of packages; ``None``: those of this tree.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str], packages: Path | None) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "rolling_host.py").write_text(HOST)
        path = [str(folder)]
        if packages is not None:
            with tarfile.open(packages) as archive:
                archive.extractall(folder, filter="data")
            path.append(str(folder / "hookspecs"))
        self._environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(path)}
        self._workers: list[asyncio.subprocess.Process] = []

    async def run(self, *command: str) -> str:
        """Run Python to its end, and return what it printed."""
        process = await self._start(*command, output=subprocess.PIPE)
        async with asyncio.timeout(300):
            printed, _ = await process.communicate()
        assert process.returncode == 0, printed.decode()
        return printed.decode()

    async def version(self) -> str:
        """Return the revision of the tables that its packages work with."""
        code = "from flowactions_plugin.storage.migrations import head; print(head())"
        return (await self.run("-c", code)).strip()

    async def migrate(self) -> str:
        """Bring the tables to its revision."""
        return await self.run("-m", "flowactions_plugin.cli", "migrate")

    async def enqueue(self, name: str, count: int, url: str) -> None:
        """Enqueue webhooks from a process of a host."""
        await self.call(["enqueue", name, count, url])

    async def call(self, *calls: list[Any]) -> list[Any]:
        """Call functions of `HOST`, in one process; returns their answers."""
        printed = await self.run(str(self._folder / "rolling_host.py"), json.dumps(calls))
        answers: list[Any] = json.loads(printed.splitlines()[-1])
        return answers

    async def start(self) -> asyncio.subprocess.Process:
        """Start a worker, and return when it delivers."""
        log = self._folder / f"worker-{len(self._workers)}.log"
        with log.open("wb") as output:
            process = await self._start(
                "-m", "flowactions_plugin.cli", "worker", "--host", "rolling_host:Shop", output=output
            )
        self._workers.append(process)
        async with asyncio.timeout(300):
            while " delivers" not in log.read_text():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.05)
        return process

    async def stop(self) -> None:
        """End the workers that run, the orderly way, and check that they ended so."""
        for process in self._workers:
            if process.returncode is None:
                process.terminate()
        async with asyncio.timeout(300):
            codes = [await process.wait() for process in self._workers]
        assert codes == [0] * len(codes), self.logs()
        self._workers.clear()

    def logs(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self._folder.glob("*.log")))

    async def _start(self, *arguments: str, output: IO[bytes] | int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            cwd=self._folder,
            env=self._environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
