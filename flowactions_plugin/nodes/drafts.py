"""Tests of drafts: one real send of a node of any type, by the real path."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from msgspec.structs import asdict, replace

from flowactions_hookspecs import (
    Eager,
    Host,
    Node,
    NodeDraft,
    NodeResult,
    OriginGone,
    TestOutcome,
    UnsignedTestOrigin,
    Walk,
)
from flowactions_plugin.clock import new_token, timer
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.errors import HostFailed, StorageUnavailable
from flowactions_plugin.host_answers import checked, failing, saved_node
from flowactions_plugin.http.masking import reason_for_tenants
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import DeliveryDetail
from flowactions_plugin.nodes import webhook
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.enqueue import unsigned_test
from flowactions_plugin.queue.host_calls import call_host
from flowactions_plugin.queue.rules import FINISHED

log = logging.getLogger("flowactions")

TESTS_A_MINUTE: Final = 10
"""Of one organization, in all processes together."""

RUN_SECONDS: Final = 30.0
"""How long a node of any type may run in a test."""


class NodeTests:
    """Runs drafts.

    Args:
        run: runs a node that was reached.
        queries: where the deliveries of webhooks are.
        admit: counts a test of an organization; gives 0, or the milliseconds until the next one is admitted.
        host: has the saved nodes.
        wait_seconds: how long the end of an attempt is waited for: its deadline, and some more to claim and write it.
    """

    def __init__(
        self,
        run: Callable[[Walk, Node], Awaitable[NodeResult]],
        queries: Insights,
        admit: Callable[[str], Awaitable[int]],
        host: Host,
        wait_seconds: float,
    ) -> None:
        self._run = run
        self._queries = queries
        self._admit = admit
        self._host = host
        self._wait_seconds = wait_seconds

    async def test(self, draft: NodeDraft, walk: Walk) -> TestOutcome:
        """Run a draft once, with a visit of its own: its event id is new, so no receiver takes it for a repetition."""
        try:
            wait_ms = await self._admit(draft.organization_id)
        except StorageUnavailable as exc:
            log.error("a test was not counted, and not made: %s", exc, extra={"event": "node_test.not_counted"})  # noqa: TRY400
            return _failed("storage_unavailable", "The database did not answer, so nothing was sent.")
        if wait_ms:
            again = max(1, round(wait_ms / 1000))
            message = f"At most {TESTS_A_MINUTE} tests a minute: try again in {again} s."
            return TestOutcome(status="limited", reason="rate_limited", message=message)
        walk = replace(walk, agent_id=draft.agent_id, pacing=Eager(), visit=f"test:{new_token()}")
        node: Node = draft.node
        if node.type == webhook.NAME:
            node = replace(node, config={**node.config, webhook.RETRY_FIELD: False})
        try:
            unsigned = await self._unsigned(walk, node)
        except HostFailed:
            message = "The saved node could not be read; the server's log has the details."
            return _failed("host_error", message)
        outcome = await self._outcome(walk, node, unsigned)
        authored = json.dumps(dict(node.config), default=str, ensure_ascii=False, skipkeys=True)
        return replace(outcome, message=reason_for_tenants(outcome.message or "", authored) or None)

    async def _unsigned(self, walk: Walk, node: Node) -> str | None:
        """Say why a webhook is sent unsigned; empty where nobody expects a signature; ``None``: it may be signed (§5.3.6)."""
        if node.type != webhook.NAME:
            return "tests of this type of node are not signed."
        # It is signed if it goes where the saved node sends, whatever secret the author has typed.
        typed = node.config.get(webhook.SECRET_FIELD)
        saved = await saved_node(self._host, walk, node)
        if saved is None or saved.type != webhook.NAME:
            return "save the node first." if typed else ""
        place, drafted = (read_config(webhook.WebhookConfig, one.config)[0].place for one in (saved, node))
        if place is None or place != drafted:
            return (
                "its URL differs from the saved one." if typed or saved.config.get(webhook.SECRET_FIELD) else ""
            )
        try:
            # Before anything is written: a delivery whose secret the host cannot give would wait for days.
            with failing(self._host, "signing_secret", OriginGone):
                answer = await call_host(self._host.signing_secret, webhook.origin(walk, node))
                secret = checked(self._host, "signing_secret", answer)
        except OriginGone:
            return "save the node first."
        return "the saved node has no signing secret. Save the node first." if typed and not secret else None

    async def _outcome(self, walk: Walk, node: Node, unsigned: str | None) -> TestOutcome:
        """Run a node, signed or not."""
        if unsigned is None:
            return await self._run_once(walk, node)
        with unsigned_test(UnsignedTestOrigin(**asdict(webhook.origin(walk, node)))) as test:
            outcome = await self._run_once(walk, node)
        if not test.was_used or not unsigned:
            return outcome
        said = f"{outcome.message or ''} The test was sent unsigned: {unsigned}".lstrip()
        return replace(outcome, message=said)

    async def _run_once(self, walk: Walk, node: Node) -> TestOutcome:
        """Run a node, and wait for the attempt of its webhook."""
        started = timer()
        try:
            async with asyncio.timeout(RUN_SECONDS):
                result = await self._run(walk, node)
        except TimeoutError:
            return _failed("timeout", f"The node did not end within {RUN_SECONDS:g} s, and was cancelled.")
        if result.status == "queued" and result.delivery_id is not None:
            return await self._ended(walk.organization_id, result.delivery_id)
        shown = TestOutcome(status="pending", message=result.message, delivery_id=result.delivery_id)
        if result.status == "queued" or result.status == "recorded":  # noqa: PLR1714  narrows the type
            return shown
        took = int((timer() - started) * 1000) if result.status == "sent" else None
        return replace(shown, status=result.status, reason=result.reason, duration_ms=took)

    async def _ended(self, organization_id: str, delivery_id: str) -> TestOutcome:
        """Wait for the end of a delivery's first attempt, whichever process makes it."""
        until, pause, left = timer() + self._wait_seconds, 0.05, 1.0
        while left > 0:
            with suppress(StorageUnavailable):
                found = await self._queries.delivery(Scope(organization_id), delivery_id)
                if found is not None and (found.row.status in FINISHED or found.row.attempts):
                    return _outcome_of(found.row)
            left = until - timer()
            await asyncio.sleep(max(0.0, min(pause, left)))
            pause = min(pause * 1.5, 0.5)
        message = "The attempt has not ended yet. It continues: look at the delivery for its outcome."
        return TestOutcome(status="pending", message=message, delivery_id=delivery_id)


def _outcome_of(delivery: DeliveryDetail) -> TestOutcome:
    """Return what a delivery's first attempt came to."""
    shown = TestOutcome(
        status="failed", reason="not_sent", message=delivery.last_error, delivery_id=delivery.id
    )
    if delivery.attempt_log:
        attempt = delivery.attempt_log[-1]
        response, took = attempt.response or None, attempt.duration_ms
        shown = replace(shown, reason="no_answer", response=response, duration_ms=took)
        if (status := attempt.status_code) is not None:
            said = f"The receiver answered {status}."
            if THROUGH_PROXY in (attempt.note or ""):
                said = f"{status} was {THROUGH_PROXY}, which may have written the answer itself."
            shown = replace(shown, reason="bad_status", message=said, status_code=status)
    is_delivered = delivery.status == "delivered"
    return replace(shown, status="delivered", reason=None, message=None) if is_delivered else shown


def _failed(reason: str, message: str) -> TestOutcome:
    """Return the outcome of a test that could not be made."""
    return TestOutcome(status="failed", reason=reason, message=message)
