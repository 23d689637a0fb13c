"""Runs one node of any type: its effect, and the end of its record when it was deferred."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from msgspec.structs import replace

from flowactions_hookspecs import (
    Host,
    InTransaction,
    Node,
    NodeResult,
    NodeType,
    PluginInvalid,
    TransactionInvalid,
    Walk,
)
from flowactions_hookspecs.hooks import returned
from flowactions_hookspecs.nodes import plugin_failed
from flowactions_hookspecs.tasks import is_being_cancelled
from flowactions_plugin.clock import timer
from flowactions_plugin.egress.guard import RESOLVE_SECONDS
from flowactions_plugin.errors import LeaseLost, NodeFailed, StorageUnavailable
from flowactions_plugin.host_answers import saved_node
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.store import DeferredStore, Record
from flowactions_plugin.nodes.webhook import NAME as WEBHOOK
from flowactions_plugin.queue.prepared import PreparedDelivery
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.outages import is_outage
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions")

RUN_SECONDS: Final = 300.0
"""How long a node may run. The lease of a deferred one is renewed meanwhile."""

WRITE_SECONDS: Final = 3.0
"""How long an `InTransaction.write` may take on PostgreSQL: a walk waits six seconds at the most."""

LONE_WRITE_SECONDS: Final = 8.0
"""The same on SQLite, which has one writer."""


class NodeRunner:
    """Runs nodes, deferred or not. The host has the secret fields of deferred ones."""

    def __init__(self, database: Database, store: DeferredStore, host: Host) -> None:
        self._database = database
        self._store = store
        self._host = host

    async def run(
        self, node_type: NodeType, walk: Walk, node: Node, transaction: Transaction | None
    ) -> NodeResult:
        """Run a node that was reached.

        Raises:
            NodeFailed: the node type does not do what the contract says; nothing was written.
            StorageUnavailable: the database failed; nothing was written.
        """
        began = timer()
        action = await _reach(node_type, walk, node)
        if isinstance(action, NodeResult):
            return action
        # To resolve a name took some of the walk's time.
        async with self._database.answering(-min(RESOLVE_SECONDS, timer() - began)):
            delivery = _delivery(action)
            try:
                if transaction is None and delivery is not None:
                    # By itself in its transaction: in fewer round trips than a transaction that others share.
                    return _named(await delivery.write(None), node)
                return await self._commit(node_type, node, action, transaction)
            except StorageUnavailable as exc:
                if delivery is None or (result := delivery.not_written(exc)) is None:
                    raise
                return _named(result, node)

    async def run_record(
        self, node_type: NodeType, record: Record, transaction: Transaction | None, results: list[NodeResult]
    ) -> None:
        """Run a deferred node, note in its record that it has run, and add its result.

        What a transaction can hold is one with the note. Another effect comes first, and then the note: a process that is
        killed in between loses nothing, and the node runs again. The result is added also when the note failed.

        Raises:
            HostFailed: the host could not give the node's secret fields; the node has not run.
            LeaseLost: another process has reclaimed the lease.
            NodeFailed: the node type does not do what the contract says; the record waits.
            StorageUnavailable: the database failed.
        """
        node = await self._with_secrets(node_type, record.walk, record.node)
        action = await _reach(node_type, record.walk, node)
        if isinstance(action, InTransaction):
            results.append(await self._commit(node_type, node, action, transaction, record))
            return
        results.append(action)
        try:
            await self._commit(node_type, node, action, transaction, record)
        except (StorageUnavailable, LeaseLost) as exc:
            log.warning(
                "%s node %s has run, but its record stays: %s",
                node.type,
                printable(node.id),
                exc,
                extra={"event": "deferred.record_stays"},
            )
            raise

    @repeated
    async def _commit(
        self,
        node_type: NodeType,
        node: Node,
        action: NodeResult | InTransaction,
        transaction: Transaction | None,
        record: Record | None = None,
    ) -> NodeResult:
        """Do in one transaction what a node does in it, and note in its record that it has run."""
        async with self._database.answering(), self._database.write(transaction) as connection:
            if record is not None and not await self._store.pop(record, connection):
                raise LeaseLost
            result = action
            if isinstance(result, InTransaction):
                result = await self._write(node_type, node, result, connection)
            if record is not None and result.halt:
                await self._store.halt(record.step, connection)
        return result

    async def _with_secrets(self, node_type: NodeType, walk: Walk, node: Node) -> Node:
        """Return the node with its secret fields as the host has them now; they are never recorded (§5.3.6)."""
        # The secret of a webhook is read when it is sent.
        if not node_type.secret_fields or node_type.name == WEBHOOK:
            return node
        current = await saved_node(self._host, walk, node)
        if current is None or current.type != node.type:
            return node
        secrets = {name: current.config[name] for name in node_type.secret_fields if name in current.config}
        return replace(node, config={**node.config, **secrets})

    async def _write(
        self, node_type: NodeType, node: Node, action: InTransaction, connection: Transaction
    ) -> NodeResult:
        """Run what a node type does in the transaction; a failure of its own is `NodeFailed`: to wait changes nothing."""
        failed = f"the write of a node of type {node_type.name!r} failed"
        try:
            if _delivery(action) is not None:
                result: object = await action.write(connection)
            else:
                seconds = LONE_WRITE_SECONDS if not self._database.sql.is_server else WRITE_SECONDS
                async with asyncio.timeout(seconds), self._database.transactions.lent(connection) as given:
                    result = await action.write(given)
            return _named(returned(result, NodeResult, f"write of node type {node_type.name!r}"), node)
        except (NodeFailed, StorageUnavailable, TransactionInvalid):
            raise
        except asyncio.CancelledError as exc:
            if is_being_cancelled():
                raise
            raise NodeFailed(failed) from exc
        except Exception as exc:
            if is_outage(exc):
                raise
            raise NodeFailed(failed) from exc


async def _reach(node_type: NodeType, walk: Walk, node: Node) -> NodeResult | InTransaction:
    """Reach a node; a wrong result is a failure."""
    try:
        async with asyncio.timeout(RUN_SECONDS):
            action = await node_type.reach(walk, node)
    except asyncio.CancelledError:
        if is_being_cancelled():
            raise
        raise NodeFailed(f"a node of type {node_type.name!r} was cancelled from within") from None
    if isinstance(action, InTransaction):
        return action
    try:
        return _named(returned(action, NodeResult, f"reach of node type {node_type.name!r}"), node)
    except PluginInvalid as exc:
        # It has run, as far as anybody knows, so it does not run again.
        log.error("node %s: %s", printable(node.id), exc, extra={"event": "node.result_invalid"})  # noqa: TRY400
        return plugin_failed(node.id)


def _delivery(action: InTransaction) -> PreparedDelivery | None:
    """Return the delivery that is all that an action writes: the plugin's own statements need no SAVEPOINT of their own."""
    found = getattr(action.write, "__self__", None)
    return found if isinstance(found, PreparedDelivery) else None


def _named(result: NodeResult, node: Node) -> NodeResult:
    """Return a result with its node's id."""
    return result if result.node_id == node.id else replace(result, node_id=node.id)
