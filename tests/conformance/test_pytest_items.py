"""The checks as tests of a host author's own suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import flowactions_conformance
from flowactions_conformance.kit.baseline import accepted, stale_in
from flowactions_conformance.kit.in_pytest import conclude
from flowactions_conformance.kit.outcomes import Status
from tests.conformance.test_reports import a_report, a_result
from tests.rings import sampled

ROOT = Path(__file__).parents[2]
PLUGIN = ["-p", "flowactions_conformance.pytest_plugin", "--pyargs", "flowactions_conformance.suite"]
SAFETY_SECONDS = 300


def ended(status: Status, warn: Callable[[str], None] = lambda _: None, **more: object) -> None:
    baseline: Any = more.pop("baseline", {})
    result = a_result("EAGER-1", status, **more)
    report = a_report(result)
    shown: list[str] = []
    report = msgspec.structs.replace(report, stale_baseline=stale_in(baseline, report))
    try:
        conclude(result, report, warn, shown.append)
    except pytest.xfail.Exception:
        raise
    except pytest.fail.Exception as exc:
        raise AssertionError("\n".join([str(exc), *shown])) from None


class TestOutcomes:
    """A test ends as its check has ended."""

    def test_a_pass_passes(self) -> None:
        """Nothing is raised."""
        ended(Status.PASS)

    @pytest.mark.parametrize("status", [Status.FAIL, Status.NOT_TESTABLE, Status.ERROR])
    def test_what_is_not_proved_fails_with_the_terminals_text(self, status: Status) -> None:
        """Clause, causes and the line that reruns it are in the failure."""
        with pytest.raises(AssertionError, match=r"(?s)clause.*usual causes.*timeline.*rerun"):
            ended(status)

    def test_a_stale_baseline_fails(self) -> None:
        """As a strict xfail does; not where the entry is about another database."""
        with pytest.raises(AssertionError, match="remove it there"):
            ended(Status.PASS, baseline=accepted({"EAGER-1": "x"}))
        ended(Status.PASS, baseline=accepted({"EAGER-1": {"reason": "x", "database": "postgresql"}}))

    def test_a_known_failure_is_expected(self) -> None:
        """With the baseline's reason."""
        with pytest.raises(pytest.xfail.Exception, match="known: until spring"):
            ended(Status.KNOWN, known="until spring")

    def test_what_is_not_claimed_is_skipped(self) -> None:
        """The reason says that nothing is proved."""
        with pytest.raises(pytest.skip.Exception, match="does not claim core, so nothing is proved of it"):
            ended(Status.NOT_CLAIMED)

    def test_a_warning_warns(self) -> None:
        """The test passes, and the text is in the summary."""
        told: list[str] = []
        ended(Status.WARN, told.append)
        assert told[0].startswith("WARN  EAGER-1")


def run_pytest(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=cwd,
        # On CI pytest's summary cuts nothing.
        env={"PATH": "", "PYTHONPATH": str(ROOT), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SAFETY_SECONDS,
    )


@pytest.mark.ci
def test_a_failing_host_in_pytest(tmp_path: Path) -> None:
    """Failures have the kit's text and no traceback of the kit; the summary names what is not proved."""
    host = "tests.conformance.misbehaving:fails_everything"
    done = run_pytest(
        *PLUGIN, "--flowactions-host", host, "-k", "LOAD-2 or EDIT-1", "-W", "error", cwd=tmp_path
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAIL  LOAD-2" in done.stdout
    assert done.stdout.count("    1. the palette is a fixed list") == 1
    assert "[LOAD-2-" in done.stdout.partition("short test summary")[2]
    assert "FAIL LOAD-2: " in done.stdout.partition("short test summary")[2]
    assert "Traceback" not in done.stdout
    assert "pytest_items.py" not in done.stdout
    assert "NOT PROVED: 2 failed of 2 checks" in done.stdout


@pytest.mark.ci
def test_a_host_that_cannot_be_made_is_an_error_of_each_test(tmp_path: Path) -> None:
    """At its setup, with what the host said; and the report holds it."""
    host = "tests.conformance.misbehaving:raises"
    options = ["--flowactions-host", host, "--flowactions-report", "out", "-k", "LOAD-2 or EDIT-1"]
    done = run_pytest(*PLUGIN, *options, cwd=tmp_path)
    assert done.returncode == 1
    assert "2 errors" in done.stdout
    assert "make_host raised ConnectionError" in done.stdout
    assert "ERROR: no check ran, so nothing is known about the host" in done.stdout
    assert '"verdict": "error"' in (tmp_path / "out" / "report.json").read_text()


@pytest.mark.ci
def test_one_process_of_xdist_runs_the_checks(tmp_path: Path) -> None:
    """The others wait for its report, which the controller prints and writes."""
    host = "tests.conformance.misbehaving:fails_everything"
    options = ["--flowactions-host", host, "--flowactions-report", "out", "-k", "LOAD-2 or EDIT-1", "-n", "2"]
    done = run_pytest(*PLUGIN, *options, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("FAIL  LOAD-2") == 1
    assert "NOT PROVED: 2 failed of 2 checks" in done.stdout
    assert '"verdict": "failed"' in (tmp_path / "out" / "report.json").read_text()


@sampled(
    ("options", "says"),
    [
        ([], "name your host: --flowactions-host package.module:make_host"),
        (["--flowactions-host", "a:b", "--flowactions-baseline", "no"], "cannot be read"),
    ],
    1,
)
def test_a_wrong_option_is_told(options: list[str], says: str, tmp_path: Path) -> None:
    """As pytest tells of its own."""
    done = run_pytest(*PLUGIN, *options, cwd=tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_the_package_is_light_and_loads_no_plugin_by_itself() -> None:
    """Importing it imports neither pytest nor a server; nothing is registered as a plugin of pytest."""
    code = "import sys, flowactions_conformance; print(sorted({'pytest', 'uvicorn', 'litestar'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "pytest11" not in (ROOT / "pyproject.toml").read_text()
    assert callable(flowactions_conformance.conformance_suite)
    with pytest.raises(AttributeError, match="no attribute 'conformance_sweet'"):
        _ = flowactions_conformance.conformance_sweet
