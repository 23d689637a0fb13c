"""Source trees whose processes are measured beside each other: this one, and another revision's."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.field import ROOT, running, terminable

LOOPS = ("asyncio", "uvloop")

_LAUNCHER = Path(__file__).with_name("from_tree.py")


class Tree(NamedTuple):
    """A source tree, run by this environment's Python with this environment's libraries.

    Of the tree itself are its packages, its migrations, and of its benchmarks ``field.fill``, ``field.HOST`` and the
    module ``steady``: databases are made and filled by the code that then delivers from them.

    Attributes:
        folder: where it is.
        loop: the worker's event loop, ``asyncio`` or ``uvloop``; ``None``: what the worker takes by itself.
    """

    folder: Path
    loop: str | None = None

    @property
    def host(self) -> str:
        """The host of its workers, which is not the same in all revisions."""
        source = (self.folder / "tests" / "benchmarks" / "field.py").read_text()
        found = re.search(r'^HOST = "(.+)"$', source, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"the benchmarks of {self.folder} name no host for workers")
        return found[1]

    def worker(self, settings: Mapping[str, str]) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run ``flowactions worker``."""
        hidden = ["--without", "uvloop"] if self.loop == "asyncio" else []
        arguments = ["flowactions_plugin.cli", "--log-level", "error", "worker", "--host", self.host]
        return running(self._command(*arguments, hidden=hidden), self._environment(settings), self.folder)

    def fill(self, url: str, rows: int, receivers: Sequence[str]) -> None:
        """Make the tables where they are missing, and enqueue so many webhooks."""
        subprocess.run(
            self._command("tests.benchmarks.field:fill"),
            input=json.dumps([url, rows, list(receivers)]),
            text=True,
            cwd=self.folder,
            env=self._environment({}),
            check=True,
            timeout=1800,
        )

    async def steady(self, settings: Mapping[str, str], *arguments: str) -> dict[str, float]:
        """Run the host that enqueues at a steady rate; returns when it reached which path, Unix seconds."""
        process = await asyncio.create_subprocess_exec(
            *self._command("tests.benchmarks.steady", *arguments),
            cwd=self.folder,
            env=self._environment(settings),
            stdout=subprocess.PIPE,
        )
        try:
            printed, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(f"the host at a steady rate ended with {process.returncode}")
        reached: dict[str, float] = json.loads(printed)
        return reached

    def _command(self, *arguments: str, hidden: Sequence[str] = ()) -> list[str]:
        return [sys.executable, str(_LAUNCHER), *hidden, str(self.folder), *arguments]

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        folders = [self.folder, self.folder / "hookspecs", self.folder / "conformance"]
        return {
            **os.environ,
            **settings,
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            # TLS to a database on the same machine costs both revisions what neither is asked about.
            "PGSSLMODE": "disable",
        }


def this_tree(loop: str | None) -> Tree:
    """Returns the tree that this module belongs to, as it is: with changes that no commit has."""
    if loop == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise SystemExit("uvloop is not installed")
    return Tree(ROOT, loop)


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check a revision out into a temporary folder while the block runs."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with terminable(), tempfile.TemporaryDirectory(prefix="flowactions-") as directory:
        folder = Path(directory).resolve() / "tree"
        done = git("worktree", "add", "--detach", str(folder), revision)
        try:
            if done.returncode:
                raise SystemExit(f"{revision} cannot be checked out: {done.stderr.strip()}")
            yield folder
        finally:
            git("worktree", "remove", "--force", str(folder))
