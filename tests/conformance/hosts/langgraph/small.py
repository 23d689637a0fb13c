"""A host without an app, whose outbox is read: for what LangGraph does by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig

from flowactions_hookspecs import DashboardPrincipal, Host, Origin, OriginGone, Request, Walk

WEBHOOK = {"webhookUrl": "https://hooks.example.com/x", "webhookBody": '{"said": {{content}}}'}
DATABASE = "all.db"
"""For the plugin's tables and LangGraph's."""


class SmallHost(Host):
    """A host whose webhooks are unsigned, and are not sent."""

    def __init__(self, folder: Path) -> None:
        self.settings = {
            "FLOWACTIONS_DATABASE_URL": f"sqlite:///{folder / DATABASE}",
            "FLOWACTIONS_HOST_WORKER": "off",
        }

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Nobody signs in."""

    async def signing_secret(self, origin: Origin) -> str | None:
        """Nothing is delivered here."""
        raise OriginGone


def walk_of(state: Mapping[str, Any], config: RunnableConfig) -> Walk:
    """Make the walk of a thread."""
    return Walk(
        organization_id="acme",
        agent_id="agent",
        flow_id="welcome",
        run_id=config["configurable"]["thread_id"],
        content=state.get("said", ""),
    )


async def never(_: Walk, step_id: str | None) -> None:
    """Fail: the database answers here."""
    raise AssertionError(step_id)


def outbox(folder: Path) -> list[tuple[str, str, str]]:
    """Read the node id, the event id and the body of each row, in the order in which they were written."""
    with sqlite3.connect(folder / DATABASE) as connection:
        rows = connection.execute("SELECT node_id, event_id, body FROM flowactions_outbox ORDER BY id")
        return [(node_id, event_id, body.decode()) for node_id, event_id, body in rows]
