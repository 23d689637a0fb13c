from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
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
    settings = development(f"sqlite:///{path}", FLOWACTIONS_HOST_WORKER="off")

    async def start() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.crash.enqueuer",
            str(EACH),
            "4",
            cwd=ROOT,
            env={**os.environ, **settings},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    processes = await asyncio.gather(*(start() for _ in range(PROCESSES)))
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"ready\n", await _complaint(process)
        ended = await asyncio.wait_for(
            asyncio.gather(*(process.communicate(b"go\n") for process in processes)), timeout=600
        )
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
    for shown, complaint in ended:
        assert json.loads(shown) == {"queued": EACH}
        assert b"locked" not in complaint
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT count(*), count(DISTINCT event_id) FROM flowactions_outbox"
        ).fetchone()
        assert found == (PROCESSES * EACH, PROCESSES * EACH)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def _complaint(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode()
