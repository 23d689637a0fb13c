"""How fast processes start, and how much memory they keep.

    python -m tests.benchmarks.start [--database sqlite postgres] [--rounds 5] [--seconds 3] [--json]

Each is started anew in each round, in turns, and the median is given:

- ``floor``: ``python -c 'import argparse, asyncio, logging'``, the least that such a command can need;
- ``help``: ``flowactions --help``;
- ``contract``: ``import flowactions_hookspecs``, as a host's or plugin's module does;

and on each database, whose tables are there:

- ``caller``: a host's process that serves no routes and delivers nothing (a scheduler, a queue's worker, a management
  command), its lifespan open;
- ``worker``: ``flowactions worker`` in continuous mode, for a host that has nothing of its own;
- ``host``: the reference host, served by uvicorn, which delivers too.

``ready_ms`` is the time until a process is done or open, ``cpu_ms`` its processor time until then and so many idle seconds
more, ``peak_rss_mib`` its highest resident memory by then, ``import_ms`` the part of the imports, by ``-X importtime``.
Of the second half of the idle seconds, ``idle_ms_per_s`` is the processor time, and ``wakes_per_s`` how often a thread began to run
after it had waited; ``--idle`` measures only the workers (``--seconds 40``).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.field import HOST, ROOT, a_database, fill, machine, settings_of, show

READY = "the benchmark reads this"

DONE = f"\nprint({READY!r}, flush=True)\nimport sys; sys.stdin.read()"
HELP = """
from flowactions_plugin.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
"""
OPENED = f"""
import asyncio, os, sys
{{imports}}

async def main():
    async with {{context}}:
        print({READY!r}, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""
CALLER = OPENED.format(
    imports="from flowactions_hookspecs import FlowActions\nfrom tests.benchmarks.bare import BareHost",
    context="FlowActions.load(BareHost()).lifespan(tasks=False)",
)
SERVED = OPENED.format(
    imports="from flowactions_conformance.reference_host import create_app\nfrom flowactions_conformance.serving import serve",
    context='serve(create_app(os.environ, os.environ["BENCHMARK_DATABASE"]).app)',
)


class Program(NamedTuple):
    """What is started.

    Attributes:
        arguments: Python's.
        settings: of its environment.
        ready: the line by which it says that it is open, or done.
    """

    arguments: Sequence[str]
    settings: Mapping[str, str]
    ready: str = READY


class Measured(NamedTuple):
    """One start."""

    ready_ms: float
    cpu_ms: float
    peak_rss_mib: float
    idle_ms_per_s: float
    wakes_per_s: float


def commands() -> dict[str, Program]:
    """Give what needs no database."""
    return {
        "floor": Program(["-c", f"import argparse, asyncio, logging{DONE}"], {}),
        "help": Program(["-c", f"{HELP}{DONE}"], {}),
        "contract": Program(["-c", f"import flowactions_hookspecs{DONE}"], {}),
    }


def processes(kind: str, url: str) -> dict[str, Program]:
    """Give what runs on a database."""
    settings = settings_of(url)
    shared = url.replace("sqlite:", "sqlite+aiosqlite:", 1).replace("postgresql:", "postgresql+asyncpg:", 1)
    worker = ["-m", "flowactions_plugin.cli", "worker", "--host", HOST]
    return {
        f"{kind}_caller": Program(["-c", CALLER], settings),
        f"{kind}_worker": Program(worker, {**settings, "FLOWACTIONS_HOST_WORKER": "off"}, "delivers"),
        f"{kind}_host": Program(["-c", SERVED], {**settings, "BENCHMARK_DATABASE": shared}),
    }


def start(program: Program, seconds: float) -> Measured:
    """Start a program, leave it alone for a while, look at it, and end it."""
    began = time.perf_counter()
    with _process(program) as process:
        _wait_for(process, program.ready)
        ready = time.perf_counter() - began
        time.sleep(seconds / 2)
        cpu_before, wakes_before = _used(process.pid)
        time.sleep(seconds / 2)
        cpu, wakes = _used(process.pid)
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.terminate()
    peak = int(status.split("VmHWM:")[1].split()[0]) / 1024
    idle = max(seconds / 2, 1e-3)
    used = ((cpu - cpu_before) * 1000 / idle, (wakes - wakes_before) / idle)
    return Measured(ready * 1000, cpu * 1000, peak, *used)


def _used(pid: int) -> tuple[float, int]:
    """Give a process's processor time, and how often its threads have waited."""
    # Linux's clock of another process's processor time, all of its threads included (clock_getcpuclockid(3)).
    cpu = time.clock_gettime(~pid << 3 | 2)
    threads = [each.read_text() for each in Path(f"/proc/{pid}/task").glob("*/status")]
    return cpu, sum(int(each.split("\nvoluntary_ctxt_switches:")[1].split()[0]) for each in threads)


def import_ms(program: Program) -> float:
    """Give the time that a program takes for all of its imports."""
    with _process(program, "-X", "importtime") as process:
        lines = _wait_for(process, program.ready)
        process.terminate()
    times = (re.match(r"import time: +(\d+) \|", line) for line in lines)
    return sum(int(found[1]) for found in times if found) / 1000


@contextmanager
def _process(program: Program, *options: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, *options, *program.arguments],
        cwd=ROOT,
        env={**os.environ, **program.settings},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def _wait_for(process: subprocess.Popen[str], ready: str) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if ready in line:
            return lines
    raise RuntimeError(f"{process.args!r} has ended: {''.join(lines)[-2000:]}")


def measure(programs: Mapping[str, Program], rounds: int, seconds: float) -> dict[str, Any]:
    """Start each program so often, in turns."""
    taken: dict[str, list[Measured]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            taken[name].append(start(program, seconds))
    found = {}
    for name, each in taken.items():
        for figure in Measured._fields:
            found[f"{name}_{figure}"] = statistics.median(getattr(one, figure) for one in each)
        found[f"{name}_import_ms"] = import_ms(programs[name])
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], nargs="*", default=["sqlite"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=3, help="how long a process idles before it is looked at"
    )
    parser.add_argument("--idle", action="store_true", help="workers only, and not how they start")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"rounds": options.rounds, "idle_s": options.seconds, "machine": machine()}
    if not options.idle:
        found |= measure(commands(), options.rounds, 0)
        found["help_to_floor"] = found["help_cpu_ms"] / found["floor_cpu_ms"]
    for kind in options.database:
        with a_database(kind) as url:
            asyncio.run(fill(url, 0, []))
            programs = processes(kind, url)
            if options.idle:
                programs = {name: each for name, each in programs.items() if name.endswith("_worker")}
            found |= measure(programs, options.rounds, options.seconds)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
