"""Ids of hosts stand in log lines; whatever they hold, a line stays one line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions, Node
from tests.commanding import ROOT
from tests.support import SmallHost, a_walk, development

FORGED = "n\nERROR flowactions: all is lost\r\x85\u2028"


async def test_an_id_cannot_forge_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a node that is skipped, one that no plugin offers, one that is not sent, and a step that is out of reach."""
    caplog.set_level(logging.DEBUG, "flowactions")
    actions = FlowActions.load(SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}")))
    async with actions.lifespan():
        caplog.clear()
        for kind in ("webhook", "chat_message", "nobody's"):
            await actions.reach(a_walk(run_id=FORGED), Node(id=FORGED, type=kind))
        (tmp_path / "f.db").unlink()
        await actions.advance(a_walk(run_id=FORGED), FORGED)
    written = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(written) >= 4
    assert [line for line in written if "all is lost" in line and len(line.splitlines()) != 1] == []
    assert sum("all is lost" in line for line in written) >= 3


MIGRATING_HOST = """
import asyncio, logging, sys
from alembic import command
from alembic.config import Config
from flowactions_hookspecs import FlowActions, Node
from tests.support import SmallHost, a_walk, development

def migrate():
    command.upgrade(config, "head")
    assert logging.getLogger("flowactions.outbox").disabled, "Alembic does not disable loggers any more"
    logging.getLogger().setLevel("INFO")

async def main():
    actions = FlowActions.load(SmallHost(development("sqlite:///f.db")))
    if sys.argv[1] == "before":
        migrate()
    async with asyncio.timeout(300), actions.lifespan():
        if sys.argv[1] == "after":
            migrate()
            while logging.getLogger("flowactions.outbox").disabled:
                await asyncio.sleep(0.1)
        await actions.reach(a_walk(), Node(id="of the walk", type="webhook", config={}))
        logging.getLogger("flowactions.outbox").error("of a child")

config = Config("alembic.ini")
command.init(config, "migrations")
config.set_main_option("sqlalchemy.url", "sqlite:///host.db")
asyncio.run(main())
"""


@pytest.mark.ci
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_host_that_runs_alembic_keeps_the_lines(tmp_path: Path, when: str) -> None:
    """Alembic's own template disables all loggers that exist, before the plugin starts or after it (§6.3)."""
    ended = subprocess.run(
        [sys.executable, "-c", MIGRATING_HOST, when],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ("created the tables" in ended.stderr) == (when == "before")
    assert "of the walk" in ended.stderr
    assert "of a child" in ended.stderr
