"""The plugin's `Runtime`: pacing and the outbox, for the node types of all plugins."""

from __future__ import annotations

import logging

from flowactions_hookspecs import (
    Advanced,
    Host,
    Node,
    NodeDraft,
    NodeResult,
    OutboundWebhook,
    PreparedWebhook,
    Receipt,
    TestOutcome,
    Walk,
    provides,
)
from flowactions_plugin.host_answers import has_agent
from flowactions_plugin.nodes.pacing import Pacing
from flowactions_plugin.nodes.testing import NodeTests
from flowactions_plugin.queue.own_webhooks import OwnWebhooks
from flowactions_plugin.storage.database import Transaction

log = logging.getLogger("flowactions")


class PluginRuntime:
    """Does what the contract's `Runtime` says.

    Args:
        pacing: runs and records nodes.
        webhooks: enqueues those of hosts and plugins.
        tests: runs drafts.
        host: has the agents.
    """

    def __init__(self, pacing: Pacing, webhooks: OwnWebhooks, tests: NodeTests, host: Host) -> None:
        self._pacing = pacing
        self._webhooks = webhooks
        self._tests = tests
        self._host = host

    async def reach(self, walk: Walk, node: Node, transaction: Transaction | None) -> NodeResult:
        """Run the node, or record it when the walk's pacing is `Deferred` (§3.2)."""
        return await self._pacing.reach(walk, node, transaction)

    async def advance(self, walk: Walk, step_id: str | None, transaction: Transaction | None) -> Advanced:
        """Run what was recorded for a content step, in walk order, once (§3.2)."""
        return await self._pacing.advance(walk, step_id, transaction)

    async def prepare(self, webhook: OutboundWebhook, caller: str) -> PreparedWebhook:
        """Apply the egress rules and fix the bytes; no SQL."""
        return await self._webhooks.prepare(webhook, caller)

    async def enqueue(self, webhook: OutboundWebhook, caller: str, transaction: Transaction | None) -> Receipt:
        """Prepare a webhook and write it, once per key."""
        return await self._webhooks.enqueue(webhook, caller, transaction)

    async def has_agent(self, organization_id: str, agent_id: str) -> bool:
        """Return whether an agent is the organization's; ``True`` if the host has no method that says so."""
        return not provides(self._host, "agent") or await has_agent(self._host, organization_id, agent_id)

    async def test(self, draft: NodeDraft, walk: Walk) -> TestOutcome:
        """Runs a draft once by the real path, at most ten times a minute and organization."""
        return await self._tests.test(draft, walk)
