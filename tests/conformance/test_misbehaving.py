"""Hosts that do not do their part end the run in time, with ERROR or FAIL, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from flowactions_conformance import HostDriver, Turn
from flowactions_conformance.kit.hosts import limits
from flowactions_conformance.kit.hosts.databases import Databases
from flowactions_conformance.kit.hosts.hosting import call_driver
from flowactions_conformance.kit.hosts.limits import Machine
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, Report, Status
from flowactions_conformance.kit.registry import select
from flowactions_conformance.kit.runner import run_checks
from tests.rings import sampled
from tests.waiting import until

ROOT = Path(__file__).parents[2]
HOSTS = "tests.conformance.misbehaving"
REFERENCE = "flowactions_conformance.reference_host.testing:make_host"
NEVER_STARTS = {"start": 2.0}
HANGS = {"call": 3.0, "effect": 0.5}
SAFETY_SECONDS = 300


@pytest.fixture(autouse=True)
def fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """How hosts are told on a slow machine is another test's: here limits are too short for one."""

    def slowness(_: Machine) -> float:
        return 1.0

    monkeypatch.setattr(Machine, "slowness", slowness)
    monkeypatch.setattr(limits, "SHORT_SECONDS", 0.5)


async def run_short(monkeypatch: pytest.MonkeyPatch, host: str, *ids: str) -> Report:
    shorter = (
        NEVER_STARTS if host.startswith("never") else HANGS if host.startswith("hangs") else {"effect": 0.5}
    )
    for what, seconds in shorter.items():
        monkeypatch.setitem(limits.SECONDS, what, seconds)
    return await run_checks(f"{HOSTS}:{host}", ids)


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowactions_conformance", "run", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SAFETY_SECONDS,
    )


FAULTS = {
    "raises": "make_host raised ConnectionError: the queue at",
    "exits_at_once": "make_host raised SystemExit: no licence",
    "nothing": "NoneType, which make_host yields, is no driver",
    "bare": "HostDriver, which make_host yields, does not do its part yet. It lacks\n  app: ",
    "no_host": "NotAHost, which make_host yields, is no driver: derive it from flowactions_conformance.HostDriver",
    "fails_to_start": "no such table: flows",
    "never_starts": "the host did not start within 2 seconds",
    "never_made": "the host did not start within 2 seconds",
    "hangs_async": "seed() of the driver did not return within 3 seconds",
    "exits": "seed() of the driver raised SystemExit: 3",
    "exits_process": "the host's process ended (status 3)",
    "no_context_manager": "make_host must return an async context manager",
}


@sampled("host", [f"{each}_as_child" for each in ("raises", "never_starts")] + [*FAULTS], 3)
async def test_a_host_that_cannot_be_tested_is_an_error(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a host does before the first check, the run ends with what it did, and with no result."""
    report = await run_short(monkeypatch, host)
    assert report.error is not None
    assert FAULTS[host.removesuffix("_as_child")] in report.error.message
    assert report.results == ()
    assert report.exit_status == 2
    assert "flowactions_conformance/kit" not in report.error.message


async def test_all_that_a_driver_lacks_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each method with what it has to do."""
    report = await run_short(monkeypatch, "bare")
    assert report.error is not None
    lacking = re.findall(r"^  (\w+): \w", report.error.message, re.MULTILINE)
    assert lacking == ["app", "seed", "palette", "open", "next", "headers"]


@pytest.mark.ci
async def test_a_host_that_blocks_its_loop_is_told_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the line of the host at which its event loop stands."""
    report = await run_short(monkeypatch, "hangs_blocking")
    assert report.error is not None
    assert "its event loop is blocked at" in report.error.message
    assert "misbehaving.py" in report.error.message


@pytest.mark.ci
async def test_a_host_that_hangs_once_checks_run_fails_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that hang are waited for less and less; each check has its result."""
    report = await run_short(monkeypatch, "hangs_later", "EAGER", "PACING")
    assert report.error is None
    assert {result.status for result in report.results} == {Status.FAIL}
    assert report.exit_status == 1


async def test_a_host_that_ends_by_itself_fails_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check whose host is gone has a result: none is lost."""
    report = await run_short(monkeypatch, "exits_later", "EAGER", "PACING")
    assert report.error is None or "ended" in report.error.message or "run" in report.error.message
    assert report.exit_status in {1, 2}
    if report.error is None:
        assert {result.id.partition("-")[0] for result in report.results} == {"EAGER", "PACING"}
        assert not any(result.status is Status.ERROR for result in report.results)


@pytest.mark.ci
def test_a_host_that_fails_everything_fails(tmp_path: Path) -> None:
    """Each failure names its clause, the usual causes and what reruns it; the exit status is 1; there is no traceback."""
    done = run_command(
        f"{HOSTS}:fails_everything", "--check", "LOAD", "--check", "SAVING", "--report", str(tmp_path)
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "FAIL  LOAD-2" in done.stdout
    assert f"clause    {select(['LOAD-2'])[0].clause}\n" in done.stdout
    assert "usual causes\n    1. the palette is a fixed list" in done.stdout
    rerun = f"rerun     python -m flowactions_conformance run {HOSTS}:fails_everything --check LOAD-2"
    assert rerun in done.stdout
    assert "NOT TESTABLE  SAVING" in done.stdout


@pytest.mark.ci
@pytest.mark.parametrize("host", ["prints", "leaves_thread"])
def test_what_a_host_prints_and_leaves_does_not_harm_the_command(host: str) -> None:
    """Two hundred megabytes on both streams, with lines and without, leave the report alone; a thread that never ends is left."""
    done = run_command(f"{HOSTS}:{host}", "--check", "LOAD-1")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(done.stdout + done.stderr) < 10_000


@pytest.mark.ci
async def test_a_factory_may_ask_for_a_process_for_each_host() -> None:
    """The kit's own process never has one."""
    report = await run_checks(f"{HOSTS}:alone_in_its_process", ["HALT-1", "PACING-4", "TASK-3", "TASK-4"])
    assert (report.mode, report.passed) == ("child", True)


@pytest.mark.ci
def test_an_interrupt_ends_the_run(tmp_path: Path) -> None:
    """Ctrl+C stops the hosts; the exit status is 130, without a traceback, and the report is written."""
    command = [
        sys.executable,
        "-m",
        "flowactions_conformance",
        "run",
        f"{HOSTS}:hangs_async",
        "--time-scale=100",
    ]
    process = subprocess.Popen(
        [*command, "--report", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            asyncio.run(until(lambda: _serves(process.pid), SAFETY_SECONDS))
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=SAFETY_SECONDS)
        finally:
            process.kill()
    assert process.returncode == 130, out + errors
    assert "INTERRUPTED after 0 of " in out
    assert "Traceback" not in errors
    assert json.loads((tmp_path / "report.json").read_bytes())["verdict"] == "interrupted"


def _serves(pid: int) -> bool:
    """Whether the command serves: then its signal handlers are set."""
    links = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(each.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return sum(link.startswith("socket:") for link in links) >= 5


@pytest.mark.ci
async def test_an_interrupted_run_reports_what_has_ended() -> None:
    """A run that is cancelled while others of its checks run. Its limits are so long that no machine is too slow for them."""
    ended: list[CheckResult] = []

    def note(result: CheckResult, _: float, __: int) -> None:
        ended.append(result)
        run.cancel()

    run = asyncio.create_task(run_checks(REFERENCE, ["LOAD", "TASK"], time_scale=20, on_result=note))
    report = await run
    assert report.interrupted
    assert set(report.results) == set(ended)
    assert 0 < len(ended) < report.checks == len(select(["LOAD", "TASK"]))
    assert report.running
    assert not {*report.running} & {each.id for each in ended}
    assert not report.passed


@pytest.mark.ci
async def test_the_databases_of_killed_runs_are_dropped_on_a_later_day(postgres_server: str) -> None:
    """Those of a run of today stay, and those of others."""
    new, old = f"flowactions_kit_{time.time():.0f}_{'a' * 12}", f"flowactions_kit_{'1' * 10}_{'b' * 12}"
    connection = await asyncpg.connect(postgres_server)
    try:
        for name in (new, old):
            await connection.execute(f"CREATE DATABASE {name}")
        await Databases(postgres_server).look()
        found = {row[0] for row in await connection.fetch("SELECT datname FROM pg_database")}
        assert {new, old} & found == {new}
    finally:
        await connection.execute(f"DROP DATABASE {new}")
        await connection.close()


RETURNED: list[tuple[str, Any, str]] = [
    ("open", Turn(session=cast("str", 3)), "a Turn(session, step_id, done, halted, raw): session: "),
    ("open", Turn(session="s", step_id=cast("str", 4)), "raw): step_id: Expected `str | null`, got `int`"),
    ("next", Turn(session="s", raw=cast("str", b"x")), "raw): raw: Expected `str`, got `bytes`"),
    ("next", None, "must return a Turn"),
    ("seed", {"a": 3}, "a dict of kit ids to your ids: one of its values: Expected `str`, got `int`"),
    ("seed", {3: "a"}, "a key: Expected `str`, got `int`"),
    ("palette", [1], "as NodeType.describe() gave them: [0]: Expected `object`, got `int`"),
    ("headers", {"x": "a\r\nb"}, "the name or value of 'x' is none of HTTP's"),
    ("headers", {"x": "\N{EURO SIGN}"}, "the name or value of 'x' is none of HTTP's"),
    ("save", None, "a list of config problems as dicts: "),
    ("handled", True, "a whole number: "),
]


@pytest.mark.parametrize(("method", "value", "said"), RETURNED)
async def test_what_a_method_returns_is_checked(method: str, value: Any, said: str) -> None:
    """What is wrong is said with method and field."""

    class Driver(HostDriver):
        pass

    async def returns(*_: object) -> Any:
        return value

    setattr(Driver, method, staticmethod(returns))
    with pytest.raises(DriverFault) as raised:
        await call_driver(Driver(), method, ())
    assert str(raised.value).startswith(f"{method}() of the driver must return ")
    assert said in str(raised.value)
