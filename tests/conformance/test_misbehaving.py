"""Hosts that do not do their part end the run in time, with ERROR or FAIL, and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from flowactions_conformance import HostDriver, Turn
from flowactions_conformance.commands.left_behind import descendants
from flowactions_conformance.kit.hosts.hosting import call_driver
from flowactions_conformance.kit.hosts.limits import LIMITS, EffectTimeout, Limits
from flowactions_conformance.kit.hosts.machine import Machine
from flowactions_conformance.kit.outcomes import DriverFault, Report, Status
from flowactions_conformance.kit.registry import select
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.kit.session import Mode

pytestmark = pytest.mark.ci

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
    "no_context_manager": "make_host must return an async context manager",
    "nothing": "NoneType, which make_host yields, lacks seed",
    "no_host": "NotAHost, which make_host yields, lacks seed",
    "fails_to_start": "no such table: flows",
    "never_starts": "the host did not start within 2 seconds",
    "never_made": "the host did not start within 2 seconds",
    "hangs_async": "seed() of the driver did not return within 3 seconds",
    "exits": "seed() of the driver raised SystemExit: 3",
}
AS_CHILDREN = ("raises", "fails_to_start", "never_starts", "hangs_async")


@pytest.mark.parametrize(
    ("host", "mode"), [*((host, "in-process") for host in FAULTS), *((host, "child") for host in AS_CHILDREN)]
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


async def test_a_host_that_hangs_once_checks_run_fails_them() -> None:
    """Calls that hang are waited for less and less; each check has its result."""
    report = await run_short("hangs_later", "EAGER", "PACING")
    assert report.error is None
    assert {(result.level, result.status) for result in report.results} == {
        ("must", Status.FAIL),
        ("should", Status.WARN),
    }
    assert report.exit_status == 1


async def test_a_host_that_ends_by_itself_fails_checks() -> None:
    """A check whose host is gone has a result: none is lost."""
    report = await run_short("exits_later", "EAGER", "PACING")
    assert report.error is None or "ended" in report.error.message or "run" in report.error.message
    assert report.exit_status in {1, 2}
    if report.error is None:
        assert {result.id.partition("-")[0] for result in report.results} == {"EAGER", "PACING"}
        assert not any(result.status is Status.ERROR for result in report.results)


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


@pytest.mark.parametrize("child", [False, True])
def test_what_a_host_prints_is_kept_within_bounds(child: bool) -> None:
    """Two hundred megabytes on both streams, with lines and without, leave the report alone and the memory small."""
    done = run_command(f"{HOSTS}:prints", "--check", "LOAD-1", *(["--child"] if child else []))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(done.stdout) < 10_000
    assert done.stderr == ""


@pytest.mark.parametrize("child", [False, True])
def test_nothing_is_left_behind(child: bool) -> None:
    """Processes that a host has left are ended and told, also those in sessions of their own."""
    done = run_command(f"{HOSTS}:leaves_behind", "--check", "LOAD-1", *(["--child"] if child else []))
    assert done.returncode == 0, done.stdout + done.stderr
    left = [int(line.split("was ended: ")[1].split()[0]) for line in done.stderr.splitlines()]
    assert len(left) in ({1, 2} if child else {2})  # of a child, the one in its session ends with it
    for pid in left:
        assert not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_thread_that_never_ends_does_not_keep_the_command() -> None:
    """The command ends with its status all the same."""
    done = run_command(f"{HOSTS}:leaves_thread", "--check", "LOAD-1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("child", [False, True])
def test_an_interrupt_ends_the_run(child: bool) -> None:
    """Ctrl+C stops the hosts; the exit status is 130, without a traceback."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "flowactions_conformance",
            "run",
            f"{HOSTS}:hangs_async",
            *(["--child"] if child else []),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # It hangs in the preflight for long enough: what opens a port or a child has been started by then.
        _wait_for_threads(process.pid)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=SAFETY_SECONDS)
    finally:
        with process:
            process.kill()
    assert process.returncode == 130, out + errors
    assert out.startswith("INTERRUPTED after 0 of ")
    assert errors == ""


def _wait_for_threads(pid: int) -> None:
    """Waits until the command serves: then its signal handlers are set."""
    deadline = time.monotonic() + SAFETY_SECONDS
    while time.monotonic() < deadline:
        if sum(map(_is_socket, Path(f"/proc/{pid}/fd").iterdir())) >= 5:
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
