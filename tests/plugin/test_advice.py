"""What is said of settings that work and are hardly meant so, and of defaults (§5.5, §8)."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions
from flowactions_plugin.settings.advice import pace_of, warnings_of
from flowactions_plugin.settings.model import read_settings
from tests.commanding import command
from tests.support import SmallHost, services_of

CHAT = {"CHAT_CLIENT_ID": "id", "CHAT_CLIENT_SECRET": "secret", "CHAT_SIGNING_SECRET": "signing"}
DEVELOPMENT = {"FLOWACTIONS_ENVIRONMENT": "development"}
HTTP = {"BACKEND_PUBLIC_URL": "http://app.example.com"}
HTTPS = {"BACKEND_PUBLIC_URL": "https://app.example.com"}


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, []),
        ({"FLOWACTIONS_EGRESS_ALLOW": "10.0.0.0/8"}, []),
        ({"FLOWACTIONS_EGRESS_ALLOW": "10.0.0.0/8, 0.0.0.0/0"}, ["has 0.0.0.0/0"]),
        ({"FLOWACTIONS_EGRESS_ALLOW": "::/0"}, ["has ::/0"]),
        ({"FLOWACTIONS_EGRESS_ALLOW": "*.internal,*.internal.example,localhost"}, []),
        (
            {"FLOWACTIONS_EGRESS_ALLOW": "*.internal.example,*.internal,*.example,0.0.0.0/0"},
            ["has 0.0.0.0/0", "has *.example"],
        ),
        (HTTP, ["begins with http://"]),
        ({**HTTP, **DEVELOPMENT}, []),
        (HTTPS, []),
        ({**CHAT, **HTTPS}, []),
        (CHAT, ["BACKEND_PUBLIC_URL is not set"]),
        ({**HTTPS, "CHAT_CLIENT_ID": "id"}, ["CHAT_CLIENT_SECRET and CHAT_SIGNING_SECRET are not set"]),
        ({**HTTPS, **CHAT, "CHAT_SIGNING_SECRET": ""}, ["CHAT_SIGNING_SECRET is not set"]),
        ({"FLOWACTIONS_CHAT_DELIVERY": "queued"}, ["at most 1 chat messages a minute"]),
        (
            {"FLOWACTIONS_CHAT_DELIVERY": "queued", "FLOWACTIONS_TICK_SECONDS": "90"},
            ["at most 0.67 chat messages"],
        ),
        ({"FLOWACTIONS_CHAT_DELIVERY": "queued", "FLOWACTIONS_TICK_SECONDS": "5"}, []),
        ({"FLOWACTIONS_CHAT_DELIVERY": "queued", "FLOWACTIONS_DELIVERY": "continuous"}, []),
        ({**DEVELOPMENT, "CHAT_BOT_TOKEN": "xoxb-1", "CHAT_SIGNING_SECRET": "signing"}, []),
    ],
)
async def test_what_is_hardly_meant_so_is_a_warning_at_load_and_in_doctor(
    given: dict[str, str], said: list[str], in_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each once; no value of a secret is repeated."""
    found = list(warnings_of(read_settings(given)))
    assert len(found) == len(said)
    for each, part in zip(found, said, strict=True):
        assert part in each.words
        assert each.advice
    services_of(SmallHost(given))
    assert [record.getMessage() for record in caplog.records] == [
        f"{each.words}: {each.advice}" for each in found
    ]
    if len(said) > 1:  # of the others, doctor says what it says of these
        shown = (await command("doctor", cwd=in_folder, **given)).out
        assert all(f"warning  settings     {each.words}" in shown for each in found)


@pytest.mark.parametrize(
    ("given", "number"),
    [
        ({}, "50 webhooks"),
        ({"FLOWACTIONS_TICK_SECONDS": "10", "FLOWACTIONS_CLAIM_LIMIT": "500"}, "3,000 webhooks"),
        ({"FLOWACTIONS_TICK_SECONDS": "120", "FLOWACTIONS_CLAIM_LIMIT": "1"}, "1 webhook"),
        ({"FLOWACTIONS_DELIVERY": "continuous"}, None),
    ],
)
async def test_the_pace_is_told_at_the_first_start_and_by_doctor(
    given: dict[str, str], number: str | None, in_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first start is that which makes the tables; later ones are silent."""
    pace = pace_of(read_settings(given))
    assert (pace is None) == (number is None)
    for is_first in (True, False):
        caplog.clear()
        async with FlowActions.load(SmallHost(given)).lifespan():
            told = [record.getMessage() for record in caplog.records if "at most" in record.getMessage()]
        expected = [f"{pace.words}: {pace.advice}"] if pace and is_first else []
        assert told == expected
    if pace is not None:
        assert f"at most {number} a minute" in pace.words
        assert f"ok       settings     {pace.words}" in (await command("doctor", cwd=in_folder, **given)).out


async def test_only_its_owner_may_read_an_sqlite_file(in_folder: Path) -> None:
    """With its WAL, from the beginning; a file that is there keeps its mode, and doctor names the file."""
    path = in_folder / "flowactions.db"
    async with FlowActions.load(SmallHost({})).lifespan():
        assert {stat.S_IMODE(each.stat().st_mode) for each in in_folder.glob("flowactions.db*")} == {0o600}
    path.chmod(0o640)
    async with FlowActions.load(SmallHost({})).lifespan():
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert f"its file is {path}" in (await command("doctor", cwd=in_folder)).out
