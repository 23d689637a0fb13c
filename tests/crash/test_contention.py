from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
from asyncio.subprocess import PIPE
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import development

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parents[2]
PROCESSES = 8
EACH = 300


async def test_eight_processes_write_into_one_sqlite_file_at_once(tmp_path: Path) -> None:
    """They all start on no database at all, write at once, and nobody hears of a lock; no row is missing."""
    path = tmp_path / "f.db"
    settings = {**os.environ, **development(f"sqlite:///{path}", FLOWACTIONS_HOST_WORKER="off")}
    program = (sys.executable, "-m", "tests.crash.enqueuer", "4", str(EACH))
    options = {"cwd": ROOT, "env": settings, "stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
    processes = await asyncio.gather(
        *(asyncio.create_subprocess_exec(*program, **options) for _ in range(PROCESSES))  # type: ignore[arg-type]
    )
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n"
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
