"""What is kept of a deferred node, and what is made of it when it is corrupt."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from flowactions_hookspecs import FlowActions, Node
from tests.host_transactions import before
from tests.support import SmallHost, a_walk, development, services_of


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("node", "{"),
        ("node", "[]"),
        ("node", '{"id": "a"}'),
        ("node", '{"id": "a", "type": "gone", "config": {}}'),
        ("node", '{"id": "a", "type": "webhook", "config": 7}'),
        ("node", '{"id": "a", "type": "webhook", "config": {"webhookUrl": ["x"], "webhookHeaders": 7}}'),
        ("walk", ""),
        ("walk", "null"),
        ("walk", '{"organization_id": "acme"}'),
        (
            "walk",
            '{"organization_id": 7, "agent_id": 7, "flow_id": 7, "run_id": 7, "user_id": 7, "content": 7}',
        ),
    ],
)
async def test_a_record_that_was_spoilt_blocks_nobody(database_url: str, column: str, value: str) -> None:
    """Whatever is in the row, the nodes behind it run, and the task that recovers lives on."""
    made = FlowActions.load(SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off")))
    config = {"webhookUrl": "http://127.0.0.1:9/"}
    async with made.lifespan():
        services = services_of(made.host)
        walks = [a_walk(), a_walk()]
        for walk in walks:
            for name in ("a", "b"):
                await made.reach(before(walk, "s"), Node(id=name, type="webhook", config=config))
        database = services._database
        async with database.write() as connection:
            spoil = text(f"UPDATE flowactions_deferred SET {column} = :value WHERE node_id = 'a'")  # noqa: S608
            await connection.execute(spoil, {"value": value})
        advanced = await made.advance(walks[0], "s")
        assert "b" in [result.node_id for result in advanced.results]
        async with database.write() as connection:
            await connection.execute(text("UPDATE flowactions_deferred SET held_until = 0"))
        assert await services._pacing.recover() >= 1
        async with database.read() as connection:
            left = await connection.execute(
                text("SELECT node_id FROM flowactions_deferred WHERE ran_at IS NULL")
            )
            assert "b" not in left.scalars().all()
