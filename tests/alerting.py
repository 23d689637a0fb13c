"""Alerts by themselves: what is queued, and what the guide shows."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import select

from flowactions_plugin.alerts.events import DestinationRecovered
from flowactions_plugin.alerts.queue import Alerts, alerts_of
from flowactions_plugin.egress.outbound import guard_of
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, outbox
from tests.docs.fences import ROOT, blocks_of

URL = "http://127.0.0.1:9/alerts?token=t0ken"
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZg"
SETTINGS = {"FLOWACTIONS_ALERTS_URL": URL, "FLOWACTIONS_ALERTS_SECRET": SECRET}


def an_alert(occurred_at: str = "", organization_id: str = "test") -> DestinationRecovered:
    """Give an alert that says little."""
    return DestinationRecovered(
        occurred_at=occurred_at, organization_id=organization_id, destination="http://alert.test:80"
    )


def alerts_in(database: Database, **settings: str) -> Alerts:
    """Give what queues alerts in a database."""
    read = read_settings({"FLOWACTIONS_ENVIRONMENT": "development", **SETTINGS, **settings})
    guard = guard_of(read, Resolver(threads=1))
    found = alerts_of(read, Outbox(database, guard, read))
    assert found is not None
    return found


async def queued(database: Database) -> list[Any]:
    """Give the rows of alerts, in the order in which they were queued."""
    async with database.read() as connection:
        query = select(outbox).where(outbox.c.organization_id == EVERY_ORGANIZATION).order_by(outbox.c.id)
        return list(await connection.execute(query))


async def bodies(database: Database) -> list[dict[str, Any]]:
    """Give what the queued alerts say."""
    return [json.loads(row.body) for row in await queued(database)]


def examples() -> dict[str, dict[str, Any]]:
    """Give the examples of the guide by their event type."""
    found = [
        json.loads(block.text)
        for block in blocks_of(ROOT / "docs" / "how-to" / "alerts.md")
        if block.language == "json"
    ]
    return {each["type"]: each for each in found}


def shape(value: Any) -> Any:
    """Give the names and the kinds of what JSON holds: of a list, those of its first element."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    if isinstance(value, list):
        return [shape(each) for each in value[:1]]
    return type(value).__name__
