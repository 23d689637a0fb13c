"""`Runtime`: what one plugin provides for all node types of all plugins."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from flowactions_hookspecs.base import AsyncConnection
from flowactions_hookspecs.drafts import NodeDraft, TestOutcome
from flowactions_hookspecs.nodes import Advanced, Node, NodeResult, Walk
from flowactions_hookspecs.webhooks import OutboundWebhook, PreparedWebhook, Receipt


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
