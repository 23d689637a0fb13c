"""A core that speaks WSGI, behind an adapter: its views call the plugin from threads."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
from a2wsgi import WSGIMiddleware
from flask import Flask

from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions, Node
from tests.owning import own_webhook
from tests.support import SmallHost, a_walk, development


def flask(actions: FlowActions, database: Path) -> Any:
    """Make the core."""
    core = Flask("core")

    @core.post("/runs/<run>")
    def reach(run: str) -> Any:
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/"})
        return {"status": actions.call(actions.reach(a_walk(run_id=run), node)).status}

    @core.post("/orders/<order>")
    def place(order: str) -> Any:
        prepared = actions.call(actions.prepare(own_webhook(entity=order, idempotency_key=order)))
        with closing(sqlite3.connect(database)) as connection, connection:
            for statement, parameters in prepared.statements("qmark"):
                written = connection.execute(statement, parameters).rowcount
        prepared.committed()
        return {"written": written}

    return actions.wrap(WSGIMiddleware(core))  # type: ignore[arg-type]  # its own types of ASGI


async def test_views_reach_nodes_and_write_webhooks(tmp_path: Path) -> None:
    """The server's lifespan opens the plugins, their routes answer, and all else is the core's."""
    database = tmp_path / "f.db"
    actions = FlowActions.load(SmallHost(development(f"sqlite:///{database}", FLOWACTIONS_HOST_WORKER="off")))
    async with (
        serve(flask(actions, database)) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=300) as client,
    ):
        assert (await client.post("/runs/r1")).json() == {"status": "queued"}
        assert [(await client.post("/orders/o1")).json()["written"] for _ in range(2)] == [1, 0]
        assert (await client.get("/integrations/health/ready")).status_code == 200
        assert (await client.get("/nothing")).status_code == 404
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM flowactions_outbox").fetchone() == (2,)
