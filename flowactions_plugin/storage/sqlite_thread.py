"""One thread that runs short transactions on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DBAPIError

from flowactions_plugin.storage.shielding import shielded
from flowactions_plugin.storage.sqlite import Deadline, prepare_connection, set_busy_timeout, shorten_wait

T = TypeVar("T")


class SQLiteThread:
    """Runs a whole transaction in one thread with the synchronous driver.

    That takes one thread switch. With the asynchronous driver, each statement takes one.

    Args:
        url: the database's.
    """

    def __init__(self, url: URL) -> None:
        self.engine = create_engine(url.set(drivername="sqlite+pysqlite"), hide_parameters=True)
        event.listen(self.engine, "connect", prepare_connection)
        self._executor = ThreadPoolExecutor(1, "flowactions sqlite")

    async def run(self, work: Callable[[Connection], T], deadline: Deadline) -> T:
        """Run the work as one transaction.

        A cancelled caller waits until the transaction has ended, because the thread holds the lock until then.

        Args:
            work: called in the thread.
            deadline: until when SQLite waits for its lock.

        Raises:
            DBAPIError: the database failed.
        """
        loop = asyncio.get_running_loop()
        return await shielded(loop.run_in_executor(self._executor, self._run, work, deadline))

    def close(self) -> None:
        """Close the connections. A transaction that is running ends by itself."""
        self._executor.shutdown(wait=False)
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], T], deadline: Deadline) -> T:
        with self.engine.connect() as connection:
            try:
                usual = shorten_wait(connection, deadline.left)
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                done = work(connection)
                connection.commit()
                if usual is not None:
                    set_busy_timeout(connection, usual)
            except DBAPIError:
                connection.invalidate()
                raise
        return done
