"""The checks as tests of a host author's own suite."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import flowactions_conformance
from flowactions_conformance.kit.in_pytest import conclude
from flowactions_conformance.kit.outcomes import Status
from tests.conformance.test_reports import a_result

ROOT = Path(__file__).parents[2]
SAFETY_SECONDS = 300


def ended(status: Status, warn: Callable[[str], None] = lambda _: None) -> None:
    result = a_result("EAGER-1", status)
    shown: list[str] = []
    try:
        conclude(result, warn, shown.append)
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

    def test_what_is_not_claimed_is_skipped(self) -> None:
        """The reason says that nothing is proved."""
        with pytest.raises(pytest.skip.Exception, match="does not claim core, so nothing is proved of it"):
            ended(Status.NOT_CLAIMED)

    def test_a_warning_warns(self) -> None:
        """The test passes, and the text is in the summary."""
        told: list[str] = []
        ended(Status.WARN, told.append)
        assert told[0].startswith("WARN  EAGER-1")


def run_pytest(host: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the suite of a host, of which two checks are selected."""
    (cwd / "test_host.py").write_text(
        "from pathlib import Path\n"
        "from flowactions_conformance import conformance_suite\n"
        f"TestHost = conformance_suite('tests.conformance.misbehaving:{host}', seed=7, report=Path('out'))\n"
    )
    options = ["-p", "no:cacheprovider", "-k", "LOAD-2 or EDIT-1", *arguments]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=cwd,
        # On CI pytest's summary cuts nothing.
        env={"PATH": "", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "CI": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=SAFETY_SECONDS,
    )


@pytest.mark.ci
@pytest.mark.parametrize("xdist", [(), ("-n", "2")])
def test_a_failing_host_in_pytest(xdist: tuple[str, ...], tmp_path: Path) -> None:
    """Failures have the kit's text and no traceback of the kit. One process of xdist runs the checks, and the others wait."""
    done = run_pytest("fails_everything", "-W", "error", *xdist, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("FAIL  LOAD-2") == 1
    assert done.stdout.count("    1. the palette is a fixed list") == 1
    assert "--check LOAD-2 --seed 7" in done.stdout
    assert "[LOAD-2-" in done.stdout.partition("short test summary")[2]
    assert "FAIL LOAD-2: " in done.stdout.partition("short test summary")[2]
    assert "Traceback" not in done.stdout
    assert '"verdict": "failed"' in (tmp_path / "out" / "report.json").read_text()


@pytest.mark.ci
def test_a_failure_can_be_accepted(tmp_path: Path) -> None:
    """As the guide says: the test of the check is expected to fail, and others are not."""
    page = (ROOT / "docs" / "how-to" / "prove-your-host.md").read_text()
    (block,) = (each for each in page.split("```") if "pytest_collection_modifyitems" in each)
    (tmp_path / "conftest.py").write_text(block.removeprefix("python").replace("EAGER-5", "LOAD-2"))
    done = run_pytest("fails_everything", cwd=tmp_path)
    assert "FAILED test_host.py::TestHost::test[EDIT-1-" in done.stdout, done.stdout + done.stderr
    assert "1 xfailed" in done.stdout


@pytest.mark.ci
def test_a_host_that_cannot_be_made_is_an_error_of_each_test(tmp_path: Path) -> None:
    """At its setup, with what the host said; and the report holds it."""
    done = run_pytest("raises", cwd=tmp_path)
    assert done.returncode == 1
    assert "2 errors" in done.stdout
    assert "make_host raised ConnectionError" in done.stdout
    assert '"verdict": "error"' in (tmp_path / "out" / "report.json").read_text()


def test_the_package_is_light_and_loads_no_plugin_by_itself() -> None:
    """Importing it imports neither pytest nor a server; nothing is registered as a plugin of pytest."""
    code = "import sys, flowactions_conformance; print(sorted({'pytest', 'uvicorn', 'litestar'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert "pytest11" not in (ROOT / "pyproject.toml").read_text()
    assert callable(flowactions_conformance.conformance_suite)
    with pytest.raises(AttributeError, match="no attribute 'conformance_sweet'"):
        _ = flowactions_conformance.conformance_sweet
