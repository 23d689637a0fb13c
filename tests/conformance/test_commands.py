"""The commands of ``python -m flowactions_conformance``."""

from __future__ import annotations

import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from flowactions_conformance.__main__ import main
from flowactions_conformance.commands.init import module_of
from flowactions_conformance.commands.run import LINE_SECONDS, Progress
from flowactions_conformance.kit.outcomes import CheckFailed, NotTestable, Status
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.requirements import COMMAND, frozen, required_now
from flowactions_conformance.kit.runner import judged
from tests.conformance.test_reports import a_result

ROOT = Path(__file__).parents[2]
SAFETY_SECONDS = 300


class TestRun:
    """``run``."""

    def test_without_a_host_it_lists_the_checks(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Each in one line: id, profile, since, title."""
        assert main(["run", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines] == [check.id for check in all_checks()]
        assert main(["run", "--list", "--check", "PACING"]) == 0
        assert all(line.startswith("PACING-") for line in capsys.readouterr().out.splitlines())

    def test_a_factory_that_is_not_there_is_an_error(self, capsys: pytest.CaptureFixture[str]) -> None:
        """It is the driver's fault, not the host's."""
        assert main(["run", "no_such_package.testing:make_host"]) == 2
        told = capsys.readouterr()
        assert "no_such_package.testing cannot be imported: ModuleNotFoundError" in told.out
        assert "ERROR: no check ran" in told.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("run", "name the factory that makes your host"),
        ("run a.b:c --check EAGRE", "no check, group or profile is named 'EAGRE'; groups are LOAD, "),
        ("run a.b:c --database sqlite:///x", "--database takes the URL of a PostgreSQL"),
        ("run a.b:c --time-scale 0", "--time-scale takes a number above 0"),
        ("run --env env", "--env and --driver belong together"),
        ("run a.b:c --driver a.b:d", "--env and --driver belong together"),
        ("run a.b:c --env env --driver a.b:d", "name --env and --driver instead"),
        ("run --env env --driver a.b:d --database postgresql://x", "serve-env has one, too"),
        ("run --env none --driver a.b:d", "the environment none cannot be read"),
        ("serve-env --url http://x:y/", "--url takes the URL at which the host is reached"),
        ("serve-env --database sqlite:///x", "--database takes the URL of a PostgreSQL"),
        ("serve-env --file /no/such/folder/env", "the environment cannot be written to /no/such/folder/env"),
        ("init host.txt", "host.txt is not the name of a Python module"),
        ("receiver --port 99999", "give another with --port"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line(
    arguments: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With exit status 2, and before anything is started."""
    assert main(arguments.split()) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert len(told.err.splitlines()) == 1
    assert told.out == ""


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_told(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one line that moves on a terminal, and elsewhere as a line each ten seconds, with what the machine makes of it."""
    stream, now = io.StringIO(), [0.0]
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Progress(4, stream)
    for status, seconds, slowness in (
        (Status.PASS, 1, 1.0),
        (Status.FAIL, LINE_SECONDS, 6.2),
        (Status.PASS, 1, 1.0),
    ):
        now[0] += seconds
        progress.add(a_result("EAGER-2", status), slowness, 8)
    progress.close()
    said = (
        "2 of 4 checks, 8 run, 1 to look at, this machine is 6 times slower than needed, about 11 seconds left"
    )
    if terminal:
        assert stream.getvalue().split("\r\x1b[K")[1:4:2] == ["starting the host", said]
        assert stream.getvalue().endswith("\r\x1b[K")
    else:
        assert stream.getvalue() == f"{said}\n"


class TestRequirements:
    """What the contract's version requires is frozen."""

    def test_nothing_required_was_removed_added_or_changed(self) -> None:
        """A passing host still passes after an upgrade of the kit; what is new has since=None."""
        assert required_now() == frozen(), COMMAND

    @pytest.mark.parametrize(
        ("since", "failed", "untested"),
        [("1.0", Status.FAIL, Status.NOT_TESTABLE), (None, Status.WARN, Status.WARN)],
    )
    def test_a_provisional_check_only_warns(self, since: str | None, failed: Status, untested: Status) -> None:
        """A defect of the kit is an error in any case."""
        check = all_checks()[0]._replace(since=since)
        assert judged(check, CheckFailed("x"))[0] is failed
        assert judged(check, NotTestable("x"))[0] is untested
        assert judged(check, ValueError("x"))[0] is Status.ERROR


class TestInit:
    """``init``."""

    @pytest.mark.ci
    def test_it_writes_a_host_that_is_proved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The printed line runs as it is, in an empty folder; its own tests prove it whole elsewhere."""
        monkeypatch.chdir(tmp_path)
        assert main(["init"]) == 0
        command = shlex.split(capsys.readouterr().out.splitlines()[-1])
        assert command[:4] == ["python", "-m", "flowactions_conformance", "run"]
        done = subprocess.run(
            [sys.executable, *command[1:], "--check", "LOAD"],
            capture_output=True,
            text=True,
            check=False,
            timeout=SAFETY_SECONDS,
        )
        assert done.returncode == 0, done.stdout

    @pytest.mark.parametrize(
        ("path", "module"),
        [("h.py", "h"), ("a/b.py", "a.b"), ("src/a/b.py", "a.b"), ("../x/h.py", "h"), ("my-app/h.py", "h")],
    )
    def test_the_factory_is_named_as_it_is_imported(
        self, path: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From the working directory, or its ``src``."""
        monkeypatch.chdir(tmp_path)
        assert module_of(Path(path)) == module


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (
            ["chat-provider"],
            "FLOWACTIONS_ENVIRONMENT CHAT_CLIENT_ID CHAT_CLIENT_SECRET CHAT_SIGNING_SECRET CHAT_API_URL CHAT_AUTHORIZE_URL",
        ),
        (["receiver", "--secret", "s3cret"], "FLOWACTIONS_ENVIRONMENT WEBHOOK_URL WEBHOOK_SECRET"),
    ],
)
def test_a_fake_is_served_with_its_settings_until_ctrl_c(command: list[str], names: str) -> None:
    """The lines can be copied, what they name answers, and Ctrl+C ends it without an error."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flowactions_conformance", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if "Ctrl+C" in line:
                break
        found = dict(re.findall(r"^([A-Z_]+)=(.+)$", "\n".join(lines), re.MULTILINE))
        assert list(found) == names.split()
        if "WEBHOOK_URL" in found:
            assert found["WEBHOOK_SECRET"] == "s3cret"
            assert httpx.post(found["WEBHOOK_URL"], timeout=SAFETY_SECONDS).status_code == 200
        else:
            assert httpx.post(f"{found['CHAT_API_URL']}auth.test", timeout=SAFETY_SECONDS).json()["ok"] is False
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SAFETY_SECONDS)
    assert process.returncode == 0
    assert errors == ""
