"""Action nodes in DBOS workflows, and steps at which they run when the user gets there.

    nodes = ActionNodes(actions)

    @DBOS.workflow()
    async def order(user: str, item: str) -> None:
        run = nodes.run(Walk(…, run_id=DBOS.workflow_id))
        await run.reach(ORDERED, keep_order, item)

DBOS runs a workflow function again from its start, and skips the steps that it has recorded. Ids of steps are the same then. Visits
are made of them, so what is repeated has the event id of the first time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal, ParamSpec, TypeVar

from dbos import DBOS, AsyncSQLAlchemyDatasource, DBOSConfig
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncEngine

from flowactions_hookspecs import Deferred, FlowActions, Node, Walk

P = ParamSpec("P")
R = TypeVar("R")

RUNNING_SECONDS: Final = 0.1
"""Between two questions whether another process has run the nodes of a step."""


class Halted(Exception):
    """An action node has stopped the run: let it end your workflow function, or catch it there and return."""


class ActionNodes:
    """The action nodes of workflows.

    Args:
        actions: the plugins.

    Attributes:
        datasource: of your database. Steps with an action node commit there, in one transaction with the webhook.
    """

    datasource: AsyncSQLAlchemyDatasource

    def __init__(self, actions: FlowActions) -> None:
        self._actions = actions

    @asynccontextmanager
    async def opened(self, config: DBOSConfig, engine: AsyncEngine) -> AsyncIterator[None]:
        """Start the plugins and then DBOS, for workflows that DBOS recovers reach action nodes at once.

        Args:
            config: of DBOS; with ``system_database_url``.
            engine: of your database, in which the plugin has its tables, too.
        """
        # Not by launch(): it keeps the event loop, and its migrations wait for transactions that go on in it.
        schema = config.get("dbos_system_schema") or "dbos"
        await asyncio.to_thread(DBOS.migrate, config["system_database_url"] or "", schema=schema)
        async with self._actions.lifespan():
            url = engine.url.render_as_string(hide_password=False)
            self.datasource = await AsyncSQLAlchemyDatasource.create(url, engine=engine)
            DBOS(config=config)
            DBOS.launch()  # in the event loop of the plugins: async workflows run in it
            try:
                yield
            finally:
                await asyncio.to_thread(DBOS.destroy)

    def run(self, walk: Walk) -> Run:
        """Return the run of a workflow; call it at the start of the workflow function.

        Args:
            walk: in a child workflow that of its parent, handed to it as an argument.
        """
        return Run(self, walk)

    async def reach(self, walk: Walk, node: Node, *, joins: bool) -> bool:
        """Reach a node within a step, and return whether it halts the run."""
        transaction = await self.datasource.sql_session().connection() if joins else None
        return (await self._actions.reach(walk, node, transaction)).halt

    async def advance(self, walk: Walk, step: str | None) -> str:
        """Run what waits for a step, once, and return the state: ``done`` or ``halted``."""
        while (advanced := await self._actions.advance(walk, step)).state == "running":  # noqa: ASYNC110
            await asyncio.sleep(RUNNING_SECONDS)  # an execution of this workflow that was taken over runs them
        return advanced.state


class Run:
    """One execution of a workflow function.

    Attributes:
        walk: what the nodes get. Replace it when the content changes.
    """

    def __init__(self, nodes: ActionNodes, walk: Walk) -> None:
        self.walk = walk
        self._nodes = nodes
        self._place = (DBOS.workflow_id or "").removeprefix(walk.run_id)
        self._waiting: list[tuple[Walk, Node]] = []

    async def reach(
        self, node: Node, function: Callable[P, Awaitable[R]] | None = None, *args: P.args, **kwargs: P.kwargs
    ) -> R | None:
        """Run an action node now, in a step of its own, in one transaction with what a function of yours writes.

        Args:
            node: its name is the step's.
            function: runs first, in the transaction of ``datasource.sql_session()``.
            args: for the function.
            kwargs: for the function.

        Returns:
            What the function returns.

        Raises:
            Halted: the node stops the run.
        """

        async def both() -> tuple[R | None, bool]:
            kept = None if function is None else await function(*args, **kwargs)
            walk = replace(self.walk, visit=f"{DBOS.step_id}{self._place}")
            return kept, await self._nodes.reach(walk, node, joins=True)

        kept, halts = await self._nodes.datasource.run_tx_step_async(
            {"name": node.id, "isolation_level": self._isolation()}, both
        )
        if halts:
            raise Halted(node.id)
        wrote: R | None = kept
        return wrote

    async def reach_outside(self, node: Node) -> None:
        """Run an action node now that acts outside the database, as ``chat_message``: no transaction is open meanwhile.

        Raises:
            Halted: the node stops the run.
        """

        async def alone() -> bool:
            walk = replace(self.walk, visit=f"{DBOS.step_id}{self._place}")
            return await self._nodes.reach(walk, node, joins=False)

        if await DBOS.run_step_async({"name": node.id}, alone):
            raise Halted(node.id)

    def wait(self, node: Node) -> None:
        """Run an action node when the run reaches its next step, or its end."""
        self._waiting.append((self.walk, node))

    async def step(self, name: str) -> str:
        """Run the nodes that wait: the user gets to a step. Show it, and wait for the user with `DBOS.recv_async`.

        Returns:
            The id of the step, another one in each passage.

        Raises:
            Halted: a node stops the run.
        """
        reserved = DBOS.reserve_step()
        step = f"{name}@{reserved.step_id}{self._place}"
        self._arrive(step, await reserved.run_async({"name": step}, self._advance, step))
        return step

    async def end(self) -> None:
        """Run the nodes that wait behind the last step.

        Raises:
            Halted: a node stops the run.
        """
        self._arrive(None, await DBOS.run_step_async({"name": "end"}, self._advance, None))

    async def _advance(self, step: str | None) -> str:
        for number, (walk, node) in enumerate(self._waiting):
            recorded = replace(walk, visit=f"{DBOS.step_id}{self._place}.{number}", pacing=Deferred(step))
            await self._nodes.reach(recorded, node, joins=False)
        return await self._nodes.advance(self.walk, step)

    def _arrive(self, step: str | None, state: str) -> None:
        self._waiting.clear()
        if state == "halted":
            raise Halted(step)

    def _isolation(self) -> Literal["SERIALIZABLE", "READ COMMITTED"]:
        # A conflict would cost the node only: reach() does not raise it, and the step would commit without the webhook.
        return "SERIALIZABLE" if self._nodes.datasource.engine.dialect.name == "sqlite" else "READ COMMITTED"
