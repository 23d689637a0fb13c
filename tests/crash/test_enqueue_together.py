"""Processes with many callers at once: one is killed while it enqueues, and several write into one SQLite file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import closing, suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.rings import sampled
from tests.support import development

ROOT = Path(__file__).parents[2]
CALLERS = 64
PROCESSES = 8
EACH = 300


async def enqueuers(url: str, count: int, *arguments: int) -> list[Process]:
    """Start so many processes that wait for a line before they begin."""
    settings = {**os.environ, **development(url, FLOWACTIONS_HOST_WORKER="off")}
    program = (sys.executable, "-m", "tests.crash.enqueuer", *map(str, arguments))
    starting = (
        asyncio.create_subprocess_exec(*program, cwd=ROOT, env=settings, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        for _ in range(count)
    )
    processes = await asyncio.gather(*starting)
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 300) == b"ready\n"
    return processes


@sampled("answers", [1, 100, 500], size=1)
async def test_who_had_an_answer_has_a_row(database_url: str, answers: int) -> None:
    """After so many answers the process is killed (kill -9): not one of them is for a row that is not there (§2.5)."""
    url = read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url
    async with Database(url):
        pass  # the tables
    (process,) = await enqueuers(database_url, 1, CALLERS)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"go\n")
        answered = [await asyncio.wait_for(process.stdout.readline(), 300) for _ in range(answers)]
        assert process.returncode is None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    answered += (await process.communicate())[0].splitlines()
    ids = [line.decode().strip() for line in answered]
    assert len(set(ids)) == len(ids) >= answers
    async with Database(url) as database, database.read() as connection:
        rows = set((await connection.execute(text("SELECT id FROM flowactions_outbox"))).scalars())
        keys = set(
            (await connection.execute(text("SELECT delivery_id FROM flowactions_enqueue_keys"))).scalars()
        )
    assert set(ids) <= rows
    assert keys <= rows


@pytest.mark.ci
async def test_eight_processes_write_into_one_sqlite_file_at_once(tmp_path: Path) -> None:
    """They all start on no database at all, write at once, and nobody hears of a lock; no row is missing."""
    path = tmp_path / "f.db"
    processes = await enqueuers(f"sqlite:///{path}", PROCESSES, 4, EACH)
    try:
        ended = await asyncio.wait_for(
            asyncio.gather(*(process.communicate(b"go\n") for process in processes)), timeout=600
        )
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    ids = {line.decode() for shown, _ in ended for line in shown.splitlines()}
    assert [
        (process.returncode, b"locked" in said) for process, (_, said) in zip(processes, ended, strict=True)
    ] == [(0, False)] * PROCESSES
    with closing(sqlite3.connect(path)) as connection:
        found = {row_id for (row_id,) in connection.execute("SELECT id FROM flowactions_outbox")}
        assert (found, len(found)) == (ids, PROCESSES * EACH)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
