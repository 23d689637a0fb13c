"""`Runtime`: what one plugin provides for all node types of all plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from flowactions_hookspecs.base import AsyncConnection
from flowactions_hookspecs.drafts import TestOutcome
from flowactions_hookspecs.nodes import Advanced, Node, NodeDraft, NodeResult, Walk
from flowactions_hookspecs.webhooks import OutboundWebhook, Receipt


class PreparedWebhook(Protocol):
    """A webhook that has passed the egress rules and whose bytes are final; nothing is written yet."""

    @property
    def refused(self) -> Receipt | None:
        """Why the webhook may not be sent: `write` then writes nothing. ``None``: it may be sent."""
        ...

    async def write(self, transaction: AsyncConnection) -> NodeResult:
        """Write the delivery in a transaction; it is due when that commits. `InTransaction` takes this method."""
        ...

    def statements(self, paramstyle: str) -> Sequence[tuple[str, Any]]:
        """Return the statements that write the delivery on a connection of your own, for code that is not async.

        Execute them in this order, on a cursor of the DB-API whose connection is to the plugin's database, inside your
        transaction or savepoint. The delivery is due when your transaction commits. If the last statement writes no row
        (``cursor.rowcount`` is 0), the key was used before, or these statements were.

        Args:
            paramstyle: of the cursor, as PEP 249 names it: ``qmark``, ``numeric``, ``named``, ``format`` or
                ``pyformat``. `psycopg` and Django's cursors take ``format``, `sqlite3` takes ``qmark``.

        Returns:
            Pairs of SQL and parameters: the key's, unless the webhook has none, and the row's. Empty if it is `refused`.

        Raises:
            ValueError: the paramstyle is unknown.
        """
        ...

    def committed(self) -> None:
        """Wake a worker after your transaction has committed `statements`; from any thread. Otherwise a worker looks."""
        ...


@runtime_checkable
class Runtime(Protocol):
    """Transactions, the outbox and pacing, for the node types in `FlowActions.node_types`.

    The plugin that provides it stores deferred nodes and runs them in order under a lease. If a process is
    killed, another one runs its nodes. `FlowActions` checks arguments, calls the method of the same name, and turns what
    it raises into results.
    """

    async def reach(self, walk: Walk, node: Node, transaction: AsyncConnection | None) -> NodeResult:
        """Run the node, or record it when the walk's pacing is `Deferred`."""
        ...

    async def advance(self, walk: Walk, step_id: str | None, transaction: AsyncConnection | None) -> Advanced:
        """Run the nodes that were recorded for a content step, in walk order, once."""
        ...

    async def prepare(self, webhook: OutboundWebhook, caller: str) -> PreparedWebhook:
        """Apply the egress rules and make the final bytes; no SQL.

        ``caller`` is ``host`` or ``plugin:<name>``; idempotency keys are unique for each caller.
        """
        ...

    async def enqueue(
        self, webhook: OutboundWebhook, caller: str, transaction: AsyncConnection | None
    ) -> Receipt:
        """Prepare a webhook and write it."""
        ...

    async def has_agent(self, organization_id: str, agent_id: str) -> bool:
        """Return whether an agent belongs to the organization, by `Host.agent`; ``True`` if the host has no such method."""
        ...

    async def test(self, draft: NodeDraft, walk: Walk) -> TestOutcome:
        """Run a draft once by the code of real deliveries, at most ten times a minute for each organization."""
        ...
