"""A host without an app, whose outbox is read: for what engines do by themselves."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from flowactions_hookspecs import DashboardPrincipal, Host, Node, Request, Walk

WEBHOOK = {"webhookUrl": "https://hooks.example.com/x", "webhookBody": '{"said": {{content}}}'}
DATABASE = "all.db"
"""For the plugin's tables and the engine's."""


class SmallHost(Host):
    """A host whose webhooks are unsigned, and are not sent."""

    def __init__(self, folder: Path) -> None:
        self.settings = {
            "FLOWACTIONS_DATABASE_URL": f"sqlite:///{folder / DATABASE}",
            "FLOWACTIONS_HOST_WORKER": "off",
        }

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Nobody signs in."""

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """Nothing is delivered here."""


def walk(run_id: str, content: str = "") -> Walk:
    """Make the walk of a run."""
    return Walk(organization_id="acme", agent_id="agent", flow_id="welcome", run_id=run_id, content=content)


def outbox(folder: Path, database: str = DATABASE) -> list[tuple[str, str, str]]:
    """Read the node id, the event id and the body of each row, in the order in which they were written."""
    with sqlite3.connect(folder / database) as connection:
        rows = connection.execute("SELECT node_id, event_id, body FROM flowactions_outbox ORDER BY id")
        return [(node_id, event_id, body.decode()) for node_id, event_id, body in rows]
