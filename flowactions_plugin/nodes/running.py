"""Runs one node of any type: its effect, and the removal of its record when it was deferred."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from flowactions_hookspecs import (
    Host,
    InTransaction,
    Node,
    NodeResult,
    NodeType,
    TransactionInvalid,
    Walk,
    provides,
)
from flowactions_hookspecs.hooks import returned
from flowactions_plugin.errors import HostAnswerInvalid, HostFailed, StorageUnavailable
from flowactions_plugin.host_answers import ask
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.records import Record
from flowactions_plugin.nodes.store import LEASE_SECONDS, DeferredStore
from flowactions_plugin.nodes.webhook import NAME as WEBHOOK
from flowactions_plugin.outbox.prepared import PreparedDelivery
from flowactions_plugin.storage.database import Connection, Database
from flowactions_plugin.storage.outages import blames_statement

log = logging.getLogger("flowactions")

T = TypeVar("T")

RENEW_SECONDS: Final = LEASE_SECONDS / 3
RUN_SECONDS: Final = 300.0
"""How long a deferred node may run: its lease is renewed meanwhile."""


class LeaseLost(Exception):
    """This process was too slow, and another one has reclaimed the lease."""


class NodeFailed(Exception):
    """A plugin's own SQL is wrong."""


class NodeRunner:
    """Runs nodes, deferred or not.

    Args:
        database: whose transactions the effects join.
        store: the records of deferred nodes.
        host: has the secret fields of deferred nodes.
    """

    def __init__(self, database: Database, store: DeferredStore, host: Host) -> None:
        self._database = database
        self._store = store
        self._host = host

    async def run(
        self, node_type: NodeType, walk: Walk, node: Node, transaction: Connection | None
    ) -> NodeResult:
        """Runs a node that was reached.

        Raises:
            StorageUnavailable: the database failed; nothing was written.
        """
        action = await _reach(node_type, walk, node)
        if isinstance(action, NodeResult):
            return action
        prepared = getattr(action.write, "__self__", None)
        if transaction is None and isinstance(prepared, PreparedDelivery):
            # By itself in its transaction: in fewer round trips than a transaction that others share.
            return _named(await prepared.write(None), node)
        async with self._database.write(transaction) as connection:
            return await _write(node_type, node, action, connection)

    async def run_record(
        self, node_type: NodeType, record: Record, transaction: Connection | None, results: list[NodeResult]
    ) -> None:
        """Runs a deferred node, removes its record, and adds its result.

        What a transaction can hold is one with the removal. Another effect comes first and the record is removed
        then: a process that is killed in between loses nothing, and the node runs again. The result is added also when
        the node has run and its record could not be removed.

        Raises:
            HostFailed: the host could not give the node's secret fields; the node has not run.
            LeaseLost: another process has reclaimed the lease.
            StorageUnavailable: the database failed.
        """
        node = await self._with_secrets(node_type, record)
        running = _reach(node_type, record.walk, node)
        # A host's transaction keeps the lease by itself.
        action = await (running if transaction is not None else self._while_renewing(record, running))
        if isinstance(action, InTransaction):
            async with self._database.write(transaction) as connection:
                await self._pop(record, connection)
                result = await _write(node_type, node, action, connection)
                await self._halt(record, result, connection)
            results.append(result)
            return
        results.append(action)
        try:
            async with self._database.write(transaction) as connection:
                await self._pop(record, connection)
                await self._halt(record, action, connection)
        except (StorageUnavailable, LeaseLost) as exc:
            log.warning(
                "%s node %s has run, but its record stays: %s",
                record.node.type,
                printable(record.node.id),
                exc,
            )
            raise

    async def _pop(self, record: Record, connection: Connection) -> None:
        if not await self._store.pop(record, connection):
            raise LeaseLost

    async def _halt(self, record: Record, result: NodeResult, connection: Connection) -> None:
        if result.halt:
            await self._store.halt(record.walk, connection)

    async def _with_secrets(self, node_type: NodeType, record: Record) -> Node:
        """Returns the node with its secret fields as the host has them now; they are never recorded (§5.3.6)."""
        node, walk = record.node, record.walk
        # The secret of a webhook is read when it is sent.
        if not node_type.secret_fields or node_type.name == WEBHOOK or not provides(self._host, "node"):
            return node
        method = f"{type(self._host).__name__}.node"
        try:
            current = await ask(self._host, "node", Node | None, walk.organization_id, walk.flow_id, node.id)
        except HostAnswerInvalid:
            raise
        except Exception as exc:
            log.exception("%s failed", method)
            raise HostFailed(f"{method} failed; the server's log has the details.") from exc
        if current is None:
            return node
        secrets = {name: current.config[name] for name in node_type.secret_fields if name in current.config}
        return replace(node, config={**node.config, **secrets})

    async def _while_renewing(self, record: Record, running: Coroutine[Any, Any, T]) -> T:
        """Awaits a node that may take longer than its lease.

        Raises:
            LeaseLost: another process has reclaimed the lease; the node was cancelled.
            TimeoutError: it took longer than `RUN_SECONDS`, and was cancelled.
        """
        task = asyncio.ensure_future(running)
        try:
            async with asyncio.timeout(RUN_SECONDS):
                while not (await asyncio.wait({task}, timeout=RENEW_SECONDS))[0]:
                    if not await self._store.renew(record):
                        raise LeaseLost
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return task.result()


async def _reach(node_type: NodeType, walk: Walk, node: Node) -> NodeResult | InTransaction:
    action = await node_type.reach(walk, node)
    if isinstance(action, InTransaction):
        return action
    return _named(returned(action, NodeResult, f"reach of node type {node_type.name!r}"), node)


async def _write(node_type: NodeType, node: Node, action: InTransaction, connection: Connection) -> NodeResult:
    try:
        result = await action.write(connection)
    except (StorageUnavailable, TransactionInvalid):
        raise
    except Exception as exc:
        if blames_statement(exc):
            # Not the database's failure, so waiting for it changes nothing.
            raise NodeFailed(f"the SQL of node type {node_type.name!r} failed") from exc
        raise
    return _named(returned(result, NodeResult, f"write of node type {node_type.name!r}"), node)


def _named(result: NodeResult, node: Node) -> NodeResult:
    return result if result.node_id == node.id else replace(result, node_id=node.id)
