"""Nothing that a test run started is left behind, however the run ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reaper import MEMORY, VARIABLE, members
from tests.waiting import until

ROOT = Path(__file__).parents[1]

CONFTEST = """
from tests import reaper
reaper.begin()
from tests.conftest import postgres_server
"""

TESTS = f"""
import os, subprocess, sys, time
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_it(number, postgres_server, tmp_path):
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    stubborn = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE, start_new_session=True)
    stubborn.stdout.readline()
    subprocess.Popen(["sleep", "600"], start_new_session=True, cwd=tmp_path, env={{}})
    with open(os.environ["SAID"], "a") as said:
        said.write(os.environ["{VARIABLE}"] + "\\n")
    time.sleep(600)
"""


@pytest.mark.ci
async def test_nothing_of_a_run_that_is_killed_is_left(tmp_path: Path) -> None:
    """Servers, processes that ignore signals or do not know of the run, and folders, with two processes of pytest."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    said = tmp_path / "said"
    given = {name: value for name, value in os.environ.items() if name not in {VARIABLE, "TMPDIR"}}
    given = {name: value for name, value in given.items() if not name.startswith("PYTEST")}
    run = subprocess.Popen(  # noqa: ASYNC220  begins at once
        [sys.executable, "-m", "pytest", "-n", "2", "-c", os.devnull, "--rootdir", tmp_path, str(tmp_path)],
        cwd=ROOT,
        env={**given, "SAID": str(said), "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        await until(lambda: said.exists() and len(said.read_text().split()) == 2)
        folder = said.read_text().split()[0]
        assert set(said.read_text().split()) == {folder}
        # pytest and its two processes; a server, two sleepers and their like of each.
        assert len(members(folder)) >= 3 + 3
        run.kill()
        assert run.wait(300)
        await until(lambda: not members(folder))
        await until(lambda: not Path(folder).exists() and not (MEMORY / Path(folder).name).exists())
    finally:
        run.kill()
        run.wait()
