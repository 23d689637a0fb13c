"""Hosts that do not do their part end the run in time, with ERROR or FAIL, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from flowactions_conformance import HostDriver, Turn
from flowactions_conformance.commands.left_behind import descendants
from flowactions_conformance.kit.hosts.hosting import call_driver
from flowactions_conformance.kit.hosts.limits import LIMITS, EffectTimeout, Limits, Machine
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, Report, Status
from flowactions_conformance.kit.registry import select
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.kit.session import Mode
from tests.rings import sampled

ROOT = Path(__file__).parents[2]
HOSTS = "tests.conformance.misbehaving"
REFERENCE = "flowactions_conformance.reference_host.testing:make_host"
NEVER_STARTS = Limits(start=2, hung_stop=0.5)
HANGS = Limits(call=3, hung_stop=0.5, hung_call=0.5)
SAFETY_SECONDS = 300


@pytest.fixture(autouse=True)
def fast_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """How hosts are told on a slow machine is another test's: here limits are too short for one."""

    async def slowness(_: Machine) -> float:
        return 1.0

    monkeypatch.setattr(Machine, "slowness", slowness)


async def run_short(host: str, *ids: str, mode: Mode = "in-process") -> Report:
    limits = NEVER_STARTS if host.startswith("never") else HANGS if host.startswith("hangs") else LIMITS
    return await run_checks(f"{HOSTS}:{host}", ids, mode=mode, limits=limits, effect_timeout=EffectTimeout(0.5))


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowactions_conformance", "run", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=SAFETY_SECONDS,
    )


FAULTS = {
    "raises": "make_host raised ConnectionError: the queue at",
    "exits_at_once": "make_host raised SystemExit: no licence",
    "nothing": "NoneType, which make_host yields, lacks seed",
    "bare": "HostDriver, which make_host yields, does not do its part yet. It lacks\n  app: ",
    "no_host": "NotAHost, which make_host yields, lacks seed",
    "fails_to_start": "no such table: flows",
    "never_starts": "the host did not start within 2 seconds",
    "never_made": "the host did not start within 2 seconds",
    "hangs_async": "seed() of the driver did not return within 3 seconds",
    "exits": "seed() of the driver raised SystemExit: 3",
    "no_context_manager": "make_host must return an async context manager",
}
AS_CHILDREN = ("raises", "never_starts")


@sampled(
    ("host", "mode"),
    [*((host, "child") for host in AS_CHILDREN), *((host, "in-process") for host in FAULTS)],
    2,
)
async def test_a_host_that_cannot_be_tested_is_an_error(host: str, mode: Mode) -> None:
    """Whatever a host does before the first check, the run ends with what it did, and with no result."""
    before = set(descendants())
    report = await run_short(host, mode=mode)
    assert report.error is not None
    assert FAULTS[host] in report.error.message
    assert report.results == ()
    assert report.exit_status == 2
    assert set(descendants()) <= before
    assert "flowactions_conformance/kit" not in report.error.message


async def test_all_that_a_driver_lacks_is_named_at_once() -> None:
    """Each method with what it has to do."""
    report = await run_short("bare")
    assert report.error is not None
    lacking = re.findall(r"^  (\w+): \w", report.error.message, re.MULTILINE)
    assert lacking == ["app", "seed", "palette", "open", "next", "headers"]


@pytest.mark.ci
async def test_a_host_that_blocks_its_loop_is_told_where() -> None:
    """The message has the line of the host at which its event loop stands."""
    report = await run_short("hangs_blocking")
    assert report.error is not None
    assert "its event loop is blocked at" in report.error.message
    assert "misbehaving.py" in report.error.message


async def test_a_process_that_exits_is_told_with_its_status() -> None:
    """A child that is gone is no silence."""
    report = await run_short("exits_process", mode="child")
    assert report.error is not None
    assert "the host's process ended (status 3)" in report.error.message


@pytest.mark.ci
async def test_a_host_that_hangs_once_checks_run_fails_them() -> None:
    """Calls that hang are waited for less and less; each check has its result."""
    report = await run_short("hangs_later", "EAGER", "PACING")
    assert report.error is None
    assert {(result.level, result.status) for result in report.results} == {("must", Status.FAIL)}
    assert report.exit_status == 1


async def test_a_host_that_ends_by_itself_fails_checks() -> None:
    """A check whose host is gone has a result: none is lost."""
    report = await run_short("exits_later", "EAGER", "PACING")
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
    assert done.stderr == ""
    assert "Traceback" not in done.stdout
    assert "FAIL  LOAD-2" in done.stdout
    assert f"clause    {select(['LOAD-2'])[0].clause}\n" in done.stdout
    assert "usual causes\n    1. the palette is a fixed list" in done.stdout
    assert (
        f"rerun     python -m flowactions_conformance run {HOSTS}:fails_everything --check LOAD-2"
        in done.stdout
    )
    assert "NOT TESTABLE  SAVING" in done.stdout


@pytest.mark.ci
@pytest.mark.parametrize("child", [False])
def test_what_a_host_prints_is_kept_within_bounds(child: bool) -> None:
    """Two hundred megabytes on both streams, with lines and without, leave the report alone and the memory small."""
    done = run_command(f"{HOSTS}:prints", "--check", "LOAD-1", *(["--child"] if child else []))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(done.stdout) < 10_000
    assert done.stderr == ""


@pytest.mark.ci
@pytest.mark.parametrize("child", [False, True])
def test_nothing_is_left_behind(child: bool) -> None:
    """Processes that a host has left are ended and told, also those in sessions of their own."""
    done = run_command(f"{HOSTS}:leaves_behind", "--check", "LOAD-1", *(["--child"] if child else []))
    assert done.returncode == 0, done.stdout + done.stderr
    left = [int(line.split("was ended: ")[1].split()[0]) for line in done.stderr.splitlines()]
    assert len(left) in ({1, 2} if child else {2})  # of a child, the one in its session ends with it
    for pid in left:
        assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.ci
def test_a_thread_that_never_ends_does_not_keep_the_command() -> None:
    """The command ends with its status all the same."""
    done = run_command(f"{HOSTS}:leaves_thread", "--check", "LOAD-1")
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def hanging(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command over a host that hangs in the preflight, once it has started all that it would leave behind."""
    process = subprocess.Popen(
        # Its limits must not end it: other runs begin and end meanwhile.
        [
            sys.executable,
            "-m",
            "flowactions_conformance",
            "run",
            f"{HOSTS}:hangs_async",
            "--time-scale=100",
            *arguments,
        ],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        try:
            _wait_until(lambda: _serves(process.pid))
            yield process
        finally:
            process.kill()


@pytest.mark.ci
async def test_a_factory_may_ask_for_a_process_for_each_host() -> None:
    """Its hosts run as with --child: the kit's own process never has one."""
    report = await run_checks(f"{HOSTS}:alone_in_its_process", ["EAGER-1", "TASK-3"])
    assert (report.mode, report.passed) == ("child", True)


@pytest.mark.ci
@pytest.mark.parametrize("child", [False, True])
def test_an_interrupt_ends_the_run(child: bool, tmp_path: Path) -> None:
    """Ctrl+C stops the hosts; the exit status is 130, without a traceback, and the report is written."""
    with hanging("--report", str(tmp_path), *(["--child"] if child else [])) as process:
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=SAFETY_SECONDS)
    assert process.returncode == 130, out + errors
    assert "INTERRUPTED after 0 of " in out
    assert errors == ""
    assert json.loads((tmp_path / "report.json").read_bytes())["verdict"] == "interrupted"


@pytest.mark.ci
async def test_an_interrupted_run_reports_what_has_ended() -> None:
    """A run that is cancelled while others of its checks run. Its limits are so long that no machine is too slow for them."""
    ended: list[CheckResult] = []

    def note(result: CheckResult) -> None:
        ended.append(result)
        run.cancel()

    run = asyncio.create_task(run_checks(REFERENCE, ["LOAD", "TASK"], time_scale=20, on_result=note))
    report = await run
    assert report.interrupted == "signal"
    assert set(report.results) == set(ended)
    assert 0 < len(ended) < report.checks == len(select(["LOAD", "TASK"]))
    assert not report.passed


@pytest.mark.ci
async def test_a_run_ends_when_its_time_has_passed() -> None:
    """Hosts are stopped as at its end."""
    before = set(descendants())
    report = await run_checks(f"{HOSTS}:hangs_async", mode="child", within=3)
    assert report.interrupted == "timeout"
    assert report.exit_status == 124
    assert set(descendants()) <= before


@pytest.mark.ci
def test_what_a_killed_run_has_left_is_removed_by_the_next(tmp_path: Path, postgres_server: str) -> None:
    """Its folder and its databases, and nothing of a run that lives, or of others."""
    home = {"TMPDIR": str(tmp_path)}
    other = tmp_path / "flowactions-conformance-other"
    other.mkdir()
    with hanging("--database", postgres_server, **home) as killed:
        left = _new_folder(tmp_path, {other})
        _wait_until(lambda: bool(_made_in(left) & _databases(postgres_server)))
        killed.kill()
        killed.wait()
    databases = _made_in(left)
    with hanging("--database", postgres_server, **home):
        living = _new_folder(tmp_path, {left, other})
        _wait_until(lambda: bool(_made_in(living) & _databases(postgres_server)))
        assert not left.exists()
        there = _databases(postgres_server)
        assert not there & databases
        # One without that server leaves what it cannot drop to the next one that has it.
        done = run_command(REFERENCE, "--check", "LOAD-1", **home)
        assert done.returncode == 0, done.stdout + done.stderr
        assert living.exists()
        assert there <= _databases(postgres_server)
    done = run_command(REFERENCE, "--check", "LOAD-1", **home)
    assert living.exists()
    done = run_command(REFERENCE, "--check", "LOAD-1", "--database", postgres_server, **home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(tmp_path.glob("flowactions-conformance-*")) == {other}


def _new_folder(tmp_path: Path, known: set[Path]) -> Path:
    def found() -> set[Path]:
        return set(tmp_path.glob("flowactions-conformance-*")) - known

    _wait_until(lambda: bool(found()))
    (folder,) = found()
    return folder


def _made_in(folder: Path) -> set[str]:
    listed = folder / "databases"
    return {line.split()[1] for line in listed.read_text().splitlines()} if listed.exists() else set()


def _databases(server: str) -> set[str]:
    async def named() -> set[str]:
        connection = await asyncpg.connect(server)
        try:
            return {row["datname"] for row in await connection.fetch("SELECT datname FROM pg_database")}
        finally:
            await connection.close()

    return asyncio.run(named())


def _serves(pid: int) -> bool:
    """Whether the command serves: then its signal handlers are set."""
    return sum(map(_is_socket, Path(f"/proc/{pid}/fd").iterdir())) >= 5


def _wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SAFETY_SECONDS
    while time.monotonic() < deadline:
        if holds():
            return
        threading.Event().wait(0.05)
    raise AssertionError("the command has not started")


def _is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except FileNotFoundError:  # closed meanwhile
        return False


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
