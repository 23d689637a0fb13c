from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import os
import asyncpg
import pytest

KEPT = []


def note(url):
    with open(os.environ["FLOWACTIONS_TEST_NOTE"], "a") as file:
        print(url.rpartition("/")[2].partition("?")[0], file=file)


def test_that_passes(postgres_url):
    note(postgres_url)


def test_that_fails(postgres_url):
    note(postgres_url)
    raise AssertionError


async def test_that_stays_connected(postgres_url):
    note(postgres_url)
    KEPT.append(await asyncpg.connect(postgres_url))
"""


@pytest.mark.ci
def test_the_suite_leaves_no_database_behind(postgres_server: str, tmp_path: Path) -> None:
    """On a server that is shared, what a test has made is gone after it: passed, failed, or still connected."""
    file, noted = tmp_path / "test_small.py", tmp_path / "names"
    file.write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
    ]
    command += ["-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), str(file)]
    settings = {"FLOWACTIONS_TEST_POSTGRES_URL": postgres_server, "FLOWACTIONS_TEST_NOTE": str(noted)}
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    assert "1 failed, 2 passed" in ended.stdout, ended.stdout
    made = noted.read_text().split()
    assert len(set(made)) == 3
    assert asyncio.run(_those_left(postgres_server, made)) == []


async def _those_left(server: str, names: list[str]) -> list[str]:
    connection = await asyncpg.connect(server)
    try:
        rows = await connection.fetch("SELECT datname FROM pg_database WHERE datname = ANY($1)", names)
    finally:
        await connection.close()
    return [row["datname"] for row in rows]
