"""Ids of hosts stand in log lines; whatever they hold, a line stays one line."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions, Node
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
