"""The plugin's `Runtime`: pacing and the outbox, for the node types of all plugins."""

from __future__ import annotations

import logging

from flowactions_hookspecs import (
    Advanced,
    Node,
    NodeDraft,
    NodeResult,
    OutboundWebhook,
    PreparedWebhook,
    Receipt,
    TestOutcome,
    Walk,
)
from flowactions_plugin.nodes.pacing import Pacing
from flowactions_plugin.nodes.testing import NodeTests
from flowactions_plugin.outbox.own_webhooks import OwnWebhooks
from flowactions_plugin.storage.database import Connection

log = logging.getLogger("flowactions")


class PluginRuntime:
    """Does what the contract's `Runtime` says.

    Args:
        pacing: runs and records nodes.
        webhooks: enqueues those of hosts and plugins.
        tests: runs drafts.
    """

    def __init__(self, pacing: Pacing, webhooks: OwnWebhooks, tests: NodeTests) -> None:
        self._pacing = pacing
        self._webhooks = webhooks
        self._tests = tests

    async def reach(self, walk: Walk, node: Node, transaction: Connection | None) -> NodeResult:
        """Runs the node, or records it when the walk's pacing is `Deferred` (§3.2)."""
        return await self._pacing.reach(walk, node, transaction)

    async def advance(self, walk: Walk, step_id: str | None, transaction: Connection | None) -> Advanced:
        """Runs what was recorded for a content step, in walk order, once (§3.2)."""
        return await self._pacing.advance(walk, step_id, transaction)

    async def prepare(self, webhook: OutboundWebhook, caller: str) -> PreparedWebhook:
        """Applies the egress rules and fixes the bytes; no SQL (§5.2)."""
        return await self._webhooks.prepare(webhook, caller)

    async def enqueue(self, webhook: OutboundWebhook, caller: str, transaction: Connection | None) -> Receipt:
        """Prepares a webhook and writes it, once per key."""
        return await self._webhooks.enqueue(webhook, caller, transaction)

    async def test(self, draft: NodeDraft, walk: Walk) -> TestOutcome:
        """Runs a draft once by the real path, at most ten times a minute and organization."""
        return await self._tests.test(draft, walk)
