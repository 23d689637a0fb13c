"""Shows what SpiffWorkflow runs again, and under which event ids: ``python -m tests.conformance.hosts.spiffworkflow.repeated FOLDER MODE``.

A process is killed between action nodes and the commit of its workflow; another one restores the workflow, goes on, and resets it
to its first action node. In the mode ``apart``, the workflow is saved on a connection of its own; in the mode ``joined``, in the
transaction that the action nodes join. Prints, as JSON, the event ids in the outbox: node id → one of each row.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import sqlalchemy as sa
from glue import shown
from processes import serializer
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from flowactions_hookspecs import FlowActions
from tests.conformance.hosts.small_host import DATABASE, SmallHost, outbox
from tests.conformance.hosts.spiffworkflow.small import engine_of, workflow_in


class OwnHost(SmallHost):
    """A host that shares its engine with the plugin."""

    database: AsyncEngine


class Saved:
    """The workflow in its table.

    Args:
        actions: the plugins.
        database: of the plugin and of the table.
        is_joined: whether action nodes join the transaction in which the workflow is saved.
        is_killed: whether the process ends before that commits.
    """

    def __init__(
        self, actions: FlowActions, database: AsyncEngine, *, is_joined: bool, is_killed: bool
    ) -> None:
        self._actions = actions
        self._database = database
        self._is_joined = is_joined
        self._is_killed = is_killed

    async def create(self) -> None:
        """Make the table, with a new workflow."""
        async with self._database.begin() as connection:
            await connection.execute(sa.text("CREATE TABLE workflow (state TEXT)"))
            await connection.execute(sa.text("INSERT INTO workflow VALUES ('')"))
            await self._save(connection, workflow_in("repeated"))

    async def go_on(self) -> None:
        """Complete the task at which the workflow waits, and save where it is then."""
        workflow = await self._restored()
        async with self._database.begin() as connection:
            engine = engine_of(self._actions, connection if self._is_joined else None)
            workflow.script_engine = engine

            def run() -> None:
                for task in shown(workflow):
                    task.run()
                engine.run(workflow)

            await asyncio.to_thread(run)
            if not self._is_joined:
                await asyncio.to_thread(engine.arrive, workflow)
            await self._save(connection, workflow)
            if self._is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
        if self._is_joined and await asyncio.to_thread(engine.arrive, workflow):
            async with self._database.begin() as connection:
                await self._save(connection, workflow)

    async def reset(self) -> None:
        """Reset the workflow to its first action node."""
        workflow = await self._restored()
        task = workflow.get_next_task(spec_name="at-once")
        workflow.reset_from_task_id(task.id)
        workflow.completed = False  # which SpiffWorkflow leaves as it was
        async with self._database.begin() as connection:
            await self._save(connection, workflow)

    async def _restored(self) -> BpmnWorkflow:
        async with self._database.connect() as connection:
            state = await connection.scalar(sa.text("SELECT state FROM workflow"))
        return serializer().deserialize_json(state)

    async def _save(self, connection: AsyncConnection, workflow: BpmnWorkflow) -> None:
        state = serializer().serialize_json(workflow)
        await connection.execute(sa.text("UPDATE workflow SET state = :state"), {"state": state})


async def go(folder: Path, *, is_joined: bool, is_killed: bool) -> None:
    """Run the workflow: to its first commit, or to its end and then from its first action node again."""
    host = OwnHost(folder)
    host.database = create_async_engine(f"sqlite+aiosqlite:///{folder / DATABASE}")
    actions = FlowActions.load(host)
    saved = Saved(actions, host.database, is_joined=is_joined, is_killed=is_killed)
    async with actions.lifespan(tasks=False):
        if is_killed:
            await saved.create()
        await saved.go_on()
        await saved.go_on()
        await saved.reset()
        await saved.go_on()
        await saved.go_on()
    await host.database.dispose()


def main() -> None:
    """Run it in two processes, and print what is in the outbox."""
    folder, mode = Path(sys.argv[1]), sys.argv[2]
    if sys.argv[3:] == ["killed"]:
        asyncio.run(go(folder, is_joined=mode == "joined", is_killed=True))
    command = [sys.executable, "-m", __spec__.name, str(folder), mode, "killed"]
    ended = subprocess.run(command, check=False).returncode
    assert ended == -signal.SIGKILL, ended
    asyncio.run(go(folder, is_joined=mode == "joined", is_killed=False))
    found: dict[str, list[str]] = {}
    for node_id, event_id, _ in outbox(folder):
        found.setdefault(node_id, []).append(event_id)
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
