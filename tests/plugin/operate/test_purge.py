"""The purge of an organization: nothing of it is left, and nothing of another is touched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sqlalchemy import Integer, LargeBinary, insert, select

from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.operate import purge_store
from flowactions_plugin.operate.purge import Purged, purge
from flowactions_plugin.operate.scope import Actor
from flowactions_plugin.storage.schema import attempts, metadata, outbox
from tests.queueing import Queue

OPERATOR = Actor("root", "Op", "command")
WITHOUT = {"flowactions_attempts", "flowactions_inbound_events", "flowactions_workers", "flowactions_alembic"}
"""Tables that name no organization: attempts belong to deliveries, the others to nobody."""


async def fill(queue: Queue, organization_id: str, rows: int) -> None:
    """Write so many rows of an organization into each table that names one, and an attempt for each delivery."""
    async with queue.database.write() as connection:
        for table in metadata.sorted_tables:
            if "organization_id" not in table.c:
                assert table.name in WITHOUT
                continue
            for number in range(1 if table.name == "flowactions_chat_connections" else rows):
                values: dict[str, Any] = {"organization_id": organization_id}
                for column in table.c:
                    if column.name in values or column.nullable:
                        continue
                    numeric = isinstance(column.type, Integer)
                    text = f"{organization_id}-{number}"
                    values[column.name] = (
                        number if numeric else text.encode() if isinstance(column.type, LargeBinary) else text
                    )
                if table.name == "flowactions_deferred":
                    values["id"] = number + 1000 * len(organization_id)
                if "status" in values:
                    values["status"] = "dead" if table is outbox else "active"
                await connection.execute(insert(table).values(values))
                if table is outbox:
                    await connection.execute(
                        insert(attempts).values(delivery_id=values["id"], number=1, started_at=1, duration_ms=1)
                    )


async def kept(queue: Queue) -> dict[str, list[Any]]:
    async with queue.database.read() as connection:
        return {
            table.name: list((await connection.execute(select(table).order_by(*table.primary_key))).all())
            for table in metadata.sorted_tables
        }


async def test_nothing_of_an_organization_is_left(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """In no table, by batches; others keep everything, and the audit says who did it, with numbers only."""
    monkeypatch.setattr(purge_store, "BATCH", 2)
    await fill(queue, "globex", 3)
    others = await kept(queue)
    await fill(queue, "acme", 5)
    counted = await purge(queue.database, "acme", OPERATOR, dry=True)
    assert msgspec.structs.asdict(counted) == dict.fromkeys(Purged.__struct_fields__, 5) | {
        "chat_connection": 1
    }
    disconnected: list[str] = []

    async def disconnect(organization_id: str) -> None:
        from flowactions_plugin.chat.store import ConnectionStore  # noqa: PLC0415

        disconnected.append(organization_id)
        await ConnectionStore(queue.database).pop(organization_id)

    removed = await purge(queue.database, "acme", OPERATOR, dry=False, disconnect=disconnect)
    assert removed == counted
    assert disconnected == ["acme"]
    left = await kept(queue)
    (line,) = [row for row in left["flowactions_audit"] if row.organization_id == "acme"]
    left["flowactions_audit"].remove(line)
    assert left == others
    assert (line.action, line.actor_id, line.number) == ("purge", "root", 61)
    assert set(msgspec.json.decode(line.before).values()) == {1, 5}
    # Again, there is nothing, and both lines stay.
    again = await purge(queue.database, "acme", OPERATOR, dry=False, disconnect=disconnect)
    assert again == Purged()
    assert disconnected == ["acme"]
    assert len((await kept(queue))["flowactions_audit"]) == 5


async def test_a_connection_goes_even_when_chat_is_not_configured(queue: Queue) -> None:
    """Its token cannot be revoked then."""
    await fill(queue, "acme", 1)
    removed = await purge(queue.database, "acme", OPERATOR, dry=False)
    assert removed.chat_connection == 1
    assert not (await kept(queue))["flowactions_chat_connections"]


@pytest.mark.parametrize("name", ["", "a\0b"])
async def test_an_organization_has_to_be_named(queue: Queue, name: str) -> None:
    """No name stands for all of them."""
    with pytest.raises(ActionInvalid):
        await purge(queue.database, name, OPERATOR, dry=False)
