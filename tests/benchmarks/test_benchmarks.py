"""The benchmarks run and say what they promise; how fast is nobody's business here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.field import HOST
from tests.benchmarks.processor import parent_of, tree_seconds
from tests.benchmarks.revisions import Tree
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "flowactions_plugin": ".",
    "flowactions_hookspecs": "hookspecs",
    "flowactions_conformance": "conformance",
}


def wait_until(holds: Callable[[], Any]) -> None:
    """Wait until ``holds`` gives something true."""
    for _ in range(round(SAFETY_SECONDS / 0.01)):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError(f"not true within {SAFETY_SECONDS} s")


def children_of(pid: int) -> list[int]:
    """Give the ids of a process's children."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if parent_of(int(entry.name)) == pid:
                found.append(int(entry.name))
    return found


def measuring(pid: int) -> list[int]:
    """Give the ids of the children that a benchmark measures with; ``uname`` and Git, which it asks first, end at once."""
    found = []
    for child in children_of(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if any(name in command for name in (b"nginx", b"tests.benchmarks.sink", b"from_tree.py")):
                found.append(child)
    return found


def worktrees(folder: Path) -> bool:
    """Whether this clone has a worktree in a folder."""
    command = ["git", "worktree", "list", "--porcelain"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return f"worktree {folder}/" in listed


def printed(module: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark, and read the one JSON object on its standard output."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    # "joined" is a difference of two medians, which may be anything when little is measured. An idle process may not wake at all.
    may_be_none = ("joined", "idle_ms_per_s", "wakes_per_s")
    measured = [value for name, value in found.items() if not any(each in name for each in may_be_none)]
    assert all(value > 0 for value in measured if isinstance(value, float)), found
    return found


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.full)])
def test_deliver(database: str) -> None:
    """Every row is delivered once, which the benchmark itself checks."""
    found = printed("deliver", "--database", database, "--rows", "300", "--destinations", "3", "--seconds", "1")
    assert found.keys() >= {
        "deliveries_per_s",
        "ceiling_per_s",
        "ratio",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "peak_rss_mib",
    }
    assert ("apart_p99_ms" in found) == (database == "postgres")


@pytest.mark.full
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_deliver_against(database: str) -> None:
    """Both trees deliver every row once, retried ones included, and the ratios of their costs are printed."""
    small = ("--rows", "2000", "--destinations", "3", "--rounds", "1", "--seconds", "0.5", "--retries", "0.7")
    found = printed("deliver", "--against", "HEAD", "--database", database, "--loop", "asyncio", *small)
    of_postgresql = {"database_us", "database_ratio", "wal_bytes", "wal_ratio", "apart_p99_ratio"}
    of_both = {"worker_us", "receiver_us", "deliveries_per_s", "peak_rss_mib", "p99_ms"}
    ratios = {"worker_ratio", "rate_ratio", "memory_ratio", "p99_ratio"}
    assert all(found[name] is not None for name in of_both | ratios)
    assert all(found[f"other_{name}"] is not None for name in of_both)
    assert all((found.get(name) is not None) == (database == "postgres") for name in of_postgresql)
    assert all(found[f"{name}_spread"][0] <= found[name] <= found[f"{name}_spread"][1] for name in ratios)


def test_against_an_unknown_revision(tmp_path: Path) -> None:
    """A revision that Git does not know ends the command with Git's reason, and leaves no worktree."""
    command = [sys.executable, "-m", "tests.benchmarks.deliver", "--against", "no-such-revision"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1
    assert "no-such-revision cannot be checked out" in done.stderr
    assert not worktrees(tmp_path)


@pytest.mark.parametrize(
    ("number", "arguments", "children"),
    [
        # Its receiver, and a worker or what fills the queue.
        (signal.SIGINT, ("--against", "HEAD"), 2),
        (signal.SIGTERM, ("--against", "HEAD"), 2),
        # Its receiver.
        (signal.SIGTERM, (), 1),
    ],
)
def test_an_interrupted_benchmark(
    number: signal.Signals, arguments: tuple[str, ...], children: int, tmp_path: Path
) -> None:
    """What a benchmark has started ends with it; a comparison removes the revision's worktree, too."""
    code = f"import sys; from tests.benchmarks.deliver import main; sys.argv[1:] = {list(arguments)!r}; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )
    started: list[int] = []

    def measures() -> bool:
        started[:] = measuring(process.pid)
        return len(started) >= children or process.poll() is not None

    try:
        wait_until(measures)
        assert len(started) >= children
        assert worktrees(tmp_path) == bool(arguments)
        process.send_signal(number)
        assert process.wait(120) != 0
    finally:
        process.kill()
        process.wait()
    assert not worktrees(tmp_path)
    assert not any(Path(f"/proc/{child}").exists() for child in started)


class TestProcessorTime:
    def test_of_children_that_have_ended(self) -> None:
        """The time of children that have ended counts, at every depth."""
        spin = "import time\nwhile time.process_time() < 0.4: pass"
        parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}]); input()"
        with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE) as process:
            try:
                wait_until(lambda: tree_seconds(process.pid) >= 0.3 and not children_of(process.pid))
            finally:
                process.kill()

    def test_without_a_child(self) -> None:
        """A descendant can be left out."""
        spin = "import time\nwhile time.process_time() < 0.4: pass\ninput()"
        with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) as process:
            try:
                wait_until(lambda: tree_seconds(process.pid) >= 0.3)
                here = os.getpid()
                with_it, without_it = tree_seconds(here), tree_seconds(here, without=[process.pid])
                assert with_it - without_it >= 0.2  # this process goes on between the two
            finally:
                process.kill()


def test_a_tree_has_its_own_host(tmp_path: Path) -> None:
    """Workers of another revision run with the host that its benchmarks name."""
    field = tmp_path / "tests" / "benchmarks" / "field.py"
    field.parent.mkdir(parents=True)
    field.write_text('ROOT = 1\nHOST = "shop:host"\n')
    assert Tree(tmp_path).host == "shop:host"
    assert Tree(ROOT).host == HOST


class TestFromTree:
    LAUNCHER = Path(__file__).with_name("from_tree.py")

    def run(self, tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.LAUNCHER), *arguments[:-1], str(tree), arguments[-1]]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    def test_another_trees_packages(self, tmp_path: Path) -> None:
        """A tree's own packages are imported, not those that are installed here."""
        for name, folder in PACKAGES.items():
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "__init__.py").write_text("")
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests" / "support.py").write_text("")
        shown = "import flowactions_plugin, flowactions_hookspecs, flowactions_conformance, tests.support\n"
        shown += "print(flowactions_plugin.__file__, flowactions_hookspecs.__file__)"
        (tmp_path / "shown.py").write_text(shown)
        done = self.run(tmp_path, "shown")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(str(tmp_path)) == 2

    def test_a_missing_package(self, tmp_path: Path) -> None:
        """A package that the tree does not have is not taken from elsewhere."""
        done = self.run(tmp_path, "platform")
        assert done.returncode == 1
        assert f"not from {tmp_path}" in done.stderr

    def test_a_hidden_library(self) -> None:
        """A library can be hidden, and is then as if it were not installed."""
        done = self.run(ROOT, "--without", "msgspec", "msgspec")
        assert done.returncode == 1
        assert "msgspec" in done.stderr


OTHERS: list[tuple[str, tuple[str, ...], set[str]]] = [
    ("scale", ("--workers", "2", "--rows", "300"), {"workers_2_per_s"}),
    ("enqueue", ("--count", "256"), {"sqlite_bare_64_p50_ms", "postgres_joined_8_p99_ms"}),
    ("upgrade", ("--rows", "2000"), {"sqlite_seconds", "postgres_seconds", "postgres_locks"}),
    (
        "start",
        ("--rounds", "1", "--seconds", "0.1", "--database", "sqlite", "postgres"),
        {"help_to_floor", "sqlite_worker_wakes_per_s", "postgres_host_import_ms"},
    ),
    ("pauses", ("--rows", "3000", "--probes", "2"), {"postgres_parked_ms"}),
    ("replay", ("--rows", "400", "--rate", "400"), {"sqlite_pace"}),
    ("telemetry", ("--deliveries", "100"), {"none_us", "both_us", "progress_us"}),
    (
        "deliver",
        ("--database", "sqlite", "--destinations", "1", "10", "--rows", "1000", "--rounds", "1"),
        {"one_to_ten", "of_10_deliveries_per_s", "worker_ratio"},
    ),
    (
        "retention",
        ("--database", "postgres", "--old", "10000", "--rows", "1000", "--rounds", "1"),
        {"postgres_ratio", "postgres_removed"},
    ),
    (
        "fairness",
        ("--database", "postgres", "--rows", "500", "--destinations", "5", "--seconds", "1", "--rounds", "1"),
        {"postgres_p99_ratio", "postgres_alone_p50_ms"},
    ),
    (
        "snapshots",
        ("--rows", "2000", "--drains", "1", "--rate", "200", "--seconds", "2"),
        {"per_s_ratio", "steady_database_us_ratio", "held_per_s", "alone_database_us"},
    ),
    (
        "hanging",
        ("--database", "sqlite", "--receivers", "2", "--rows", "3", "--seconds", "2"),
        {"sqlite_2_p99_ratio", "sqlite_alone_p50_ms"},
    ),
    ("operator", ("--rows", "3000", "--drain", "100", "--rounds", "2"), {"sqlite", "postgres"}),
    ("node", ("--count", "20"), {"sqlite_webhook_p50_ms", "postgres_chat_p99_ms"}),
]
ALWAYS = {"telemetry"}
"""Those that always run, with ``deliver``. The others are behind ``full``."""


@pytest.mark.parametrize(
    ("module", "arguments", "keys"),
    [pytest.param(*each, marks=() if each[0] in ALWAYS else pytest.mark.full, id=each[0]) for each in OTHERS],
)
def test_the_others(module: str, arguments: tuple[str, ...], keys: set[str]) -> None:
    """They end, and print their figures."""
    assert printed(module, *arguments).keys() >= keys
