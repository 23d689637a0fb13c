"""What statements cost: plans and work, as the database counts them, not seconds."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import event

from flowactions_plugin.storage.database import Database
from tests.queueing import OutboxStore


class Watched:
    """The queue of a large table, and what the database says of the statements."""

    def __init__(self, database: Database, tables: str = "flowactions_outbox") -> None:
        self.database = database
        self.tables = tables
        self.store = OutboxStore(database)
        self.statements: list[tuple[str, Any]] = []
        engines = database._engines
        assert engines.current is not None
        self.engine = engines.current
        self.engines = [self.engine.sync_engine, *([engines.thread.engine] if engines.thread else [])]
        for engine in self.engines:
            event.listen(engine, "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        self.statements.append((statement, parameters))

    async def plans(self, call: Callable[[OutboxStore], Awaitable[Any]]) -> list[str]:
        """Give the plans of everything that a call says to the database."""
        self.statements.clear()
        await call(self.store)
        found: list[str] = []
        for statement, parameters in list(self.statements):
            if "flowactions_" in statement and not statement.startswith(("LOCK", "SAVEPOINT", "RELEASE")):
                found += await self._explained(statement, parameters)
        return found

    async def _explained(self, statement: str, parameters: Any) -> list[str]:
        if self.database.dialect == "sqlite":
            async with self.engine.connect() as connection:
                rows: Any = await connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
                return ["\n".join(str(row[3]) for row in rows)]
        # With these parameters, and as a prepared statement may come to be planned for any.
        async with self.engine.connect() as connection:
            one = (await connection.exec_driver_sql(f"EXPLAIN {statement}", parameters)).scalars().all()
            driver: Any = (await connection.get_raw_connection()).driver_connection
            await driver.execute(f"PREPARE asked AS {statement}")
            await driver.execute("SET plan_cache_mode = force_generic_plan")
            count = max(map(int, re.findall(r"\$(\d+)", statement)), default=0)
            values = f"({', '.join(['NULL'] * count)})" if count else ""
            any_ = [row[0] for row in await driver.fetch(f"EXPLAIN EXECUTE asked{values}")]
            await driver.execute("RESET plan_cache_mode; DEALLOCATE asked")
            return ["\n".join(one), "\n".join(any_)]

    async def work(self, call: Callable[[OutboxStore], Awaitable[Any]]) -> int:
        """Count what a call costs: pages touched, or SQLite's steps by the hundred."""
        if self.database.dialect == "sqlite":
            return await self._steps(call)
        self.statements.clear()
        await call(self.store)
        pages = 0
        for statement, parameters in [each for each in self.statements if self.tables in each[0]]:
            async with self.engine.connect() as connection:
                explained = await connection.exec_driver_sql(
                    f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters
                )
                (plan,) = explained.scalars()
            root = (json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]
            pages += int(root["Shared Hit Blocks"] + root["Shared Read Blocks"])
        return pages

    async def _steps(self, call: Callable[[OutboxStore], Awaitable[Any]]) -> int:
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        def watch(connection: Any, *_: Any) -> None:
            driver = getattr(connection, "driver_connection", connection)
            getattr(driver, "_conn", driver).set_progress_handler(step, 100)

        for engine in self.engines:
            event.listen(engine, "checkout", watch)
        await call(self.store)
        for engine in self.engines:
            event.remove(engine, "checkout", watch)
        return steps
