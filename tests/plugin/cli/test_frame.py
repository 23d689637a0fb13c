from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from flowactions_hookspecs import SettingsInvalid
from flowactions_plugin.cli import main
from flowactions_plugin.cli.frame import call, command
from flowactions_plugin.errors import ActionInvalid, FilterInvalid, SchemaNewer, StorageUnavailable
from flowactions_plugin.settings.model import read_settings
from tests.commanding import ROOT


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing command."),
        (["worker"], "Missing option '--host'."),
        (["migrate", "--chekc"], "Did you mean"),
        (["outbox", "list", "--limit", "many"], "'many' is not a valid integer"),
        (["outbox", "list", "--limit", "\x1b[31m"], r"'\x1b[31m' is not"),
        (["destinations", "pause", "\ud800"], "It must be valid UTF-8."),
        (["--log-level", "all", "status"], "'all' is not one of"),
    ],
)
def test_a_mistake_is_one_line_that_leads_to_help(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the command whose help says more, and the exit status is 2."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("flowactions: ")
    assert err.endswith("--help'.\n")
    assert told in err
    assert err.count("\n") == 1


def test_an_unexpected_error_shows_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    """It may hold a secret: type and place are shown."""

    async def broken() -> int:
        raise RuntimeError("s3cret")

    group = click.Group("flowactions", commands=[command("broken", broken, "Fail.")])
    assert call(group, ["broken"]) == 1
    _, err = capsys.readouterr()
    assert err.startswith("flowactions: failed unexpectedly: RuntimeError in ")
    assert "s3cret" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageUnavailable("the database failed"), 1),
        (ActionInvalid("there is nothing to do"), 2),
        (FilterInvalid("since: must be a time", "since"), 2),
        (SettingsInvalid("a setting is wrong"), 2),
        (SchemaNewer("the tables are of a later release"), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_the_exit_status_tells_a_wrong_command_from_one_that_failed(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What may succeed when it is repeated is another status."""

    async def failing() -> int:
        raise error

    group = click.Group("flowactions", commands=[command("failing", failing, "Fail.")])
    assert call(group, ["failing"]) == code
    _, err = capsys.readouterr()
    assert str(error) in err
    assert err.count("\n") == 1


def test_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    """As with ``flowactions … | head``: no traceback."""
    code = "import sys\nfrom flowactions_plugin.cli import main\nsys.exit(main(['keygen']))"
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, cwd=ROOT, check=False, text=True
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_made_key_is_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is another one."""
    keys = set()
    for _ in range(3):
        assert main(["keygen"]) == 0
        keys.add(capsys.readouterr().out.strip())
    assert len(keys) == 3
    assert len(read_settings({"FLOWACTIONS_ENCRYPTION_KEYS": ",".join(keys)}).encryption_keys) == 3
