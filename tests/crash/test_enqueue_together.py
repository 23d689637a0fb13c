"""A process with many callers at once is killed while it enqueues: who had an answer has a row."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path

from sqlalchemy import text

from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from tests.rings import sampled
from tests.support import development

ROOT = Path(__file__).parents[2]
CALLERS = 64


@sampled("answers", [1, 100, 500], size=1)
async def test_who_had_an_answer_has_a_row(database_url: str, answers: int) -> None:
    """After so many answers the process is killed (kill -9): not one of them is for a row that is not there (§2.5)."""
    settings = development(database_url, FLOWACTIONS_HOST_WORKER="off")
    url = read_settings(settings).database_url
    async with Database(url):
        pass  # the tables
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.crash.enqueuer", str(CALLERS)),
        cwd=ROOT,
        env={**os.environ, **settings},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await asyncio.wait_for(process.stdout.readline(), 300) == b"ready\n"
        process.stdin.write(b"go\n")
        answered = [await asyncio.wait_for(process.stdout.readline(), 300) for _ in range(answers)]
        assert process.returncode is None
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    answered += (await process.stdout.read()).splitlines()
    await process.wait()
    ids = [line.decode().strip() for line in answered]
    assert len(set(ids)) == len(ids) >= answers
    async with Database(url) as database, database.read() as connection:
        rows = set((await connection.execute(text("SELECT id FROM flowactions_outbox"))).scalars())
        keys = set(
            (await connection.execute(text("SELECT delivery_id FROM flowactions_enqueue_keys"))).scalars()
        )
    assert set(ids) <= rows
    assert keys <= rows
