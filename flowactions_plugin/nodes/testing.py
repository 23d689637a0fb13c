"""Tests of a node: one real send by the real path, as the author has the node now."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

from msgspec.structs import replace

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
    provides,
)
from flowactions_plugin.deliveries.operator_queries import OperatorQueries
from flowactions_plugin.deliveries.views import detail
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.errors import HostFailed, StorageUnavailable
from flowactions_plugin.host_answers import checked, saved_node
from flowactions_plugin.http.masking import without_addresses
from flowactions_plugin.nodes.webhook import NAME as WEBHOOK
from flowactions_plugin.nodes.webhook import RETRY_FIELD, origin, place_of
from flowactions_plugin.queue.enqueue import unsigned_test
from flowactions_plugin.queue.host_calls import call_host
from flowactions_plugin.queue.rules import FINISHED

log = logging.getLogger("flowactions")

TESTS_A_MINUTE: Final = 10
"""Of one organization, in all processes together."""

WAIT_SECONDS: Final = 12.0
"""The deadline of an attempt, and some more to claim and write it."""

RUN_SECONDS: Final = 30.0
"""How long a node of any type may run in a test."""

FIRST_POLL_SECONDS: Final = 0.05
POLL_SECONDS: Final = 0.5

NOT_SAVED: Final = "save the node first."
OTHER_URL: Final = "its URL differs from the saved one."
NOT_KNOWN: Final = (
    f"{NOT_SAVED} If you have saved it: this service does not look up saved nodes, so it signs no tests."
)
OTHER_TYPE: Final = "tests of this type of node are not signed."
"""Why a test is sent unsigned; follows a colon."""

Run = Callable[[Walk, Node], Awaitable[NodeResult]]
Admit = Callable[[str], Awaitable[int]]


class NodeTests:
    """Runs drafts.

    Args:
        run: runs a node that was reached.
        queries: where the deliveries of webhooks are.
        admit: counts a test of an organization; gives 0, or the milliseconds until the next one is admitted.
        host: has the saved nodes.
        wait_seconds: how long the end of an attempt is waited for.
    """

    def __init__(
        self, run: Run, queries: OperatorQueries, admit: Admit, host: Host, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self._run = run
        self._queries = queries
        self._admit = admit
        self._host = host
        self._wait_seconds = wait_seconds

    async def test(self, draft: NodeDraft, walk: Walk) -> TestOutcome:
        """Runs a draft once, with a visit of its own: its event id is new, so no receiver takes it for a repetition.

        Args:
            draft: the node as its author has it.
            walk: gives the variables, and the flow that the node is in.
        """
        try:
            wait_ms = await self._admit(draft.organization_id)
        except StorageUnavailable as exc:
            log.error("a test was not counted, and not made: %s", exc, extra={"event": "node_test.not_counted"})  # noqa: TRY400
            message = "The database did not answer, so nothing was sent."
            return TestOutcome(status="failed", reason="storage_unavailable", message=message)
        if wait_ms:
            message = (
                f"At most {TESTS_A_MINUTE} tests a minute: try again in {max(1, round(wait_ms / 1000))} s."
            )
            return TestOutcome(status="limited", reason="rate_limited", message=message)
        walk = replace(walk, agent_id=draft.agent_id, pacing=Eager(), visit=f"test:{uuid4().hex}")
        node, unsigned = draft.node, OTHER_TYPE
        if node.type == WEBHOOK:
            node = replace(node, config={**node.config, RETRY_FIELD: False})
            try:
                unsigned = await self._unsigned(walk, node)
            except HostFailed:
                message = "The saved node could not be read; the server's log has the details."
                return TestOutcome(status="failed", reason="host_error", message=message)
        outcome = await self._outcome(walk, node, unsigned)
        authored = json.dumps(dict(node.config), default=str, ensure_ascii=False, skipkeys=True)
        return replace(outcome, message=without_addresses(outcome.message or "", authored) or None)

    async def _unsigned(self, walk: Walk, node: Node) -> str:
        """Says why a draft's webhook is sent unsigned; empty: it may be signed, for it goes where the saved node sends.

        What the author typed as the secret takes no part in it (§5.3.6).

        Raises:
            HostFailed: the host could not tell; it was logged.
        """
        if not provides(self._host, "node"):
            return NOT_KNOWN
        saved = await saved_node(self._host, walk, node)
        if saved is None or saved.type != WEBHOOK:
            return NOT_SAVED
        place = place_of(saved.config)
        if place is None or place != place_of(node.config):
            return OTHER_URL
        try:
            # Before anything is written: a delivery whose secret the host cannot give would wait for days.
            answer = await call_host(self._host.signing_secret, origin(walk, node))
            checked(self._host, "signing_secret", str | None, answer)
        except OriginGone:
            return NOT_SAVED
        except Exception as exc:
            method = f"{type(self._host).__name__}.signing_secret"
            log.exception("%s failed for a test", method, extra={"event": "host.method_failed"})
            raise HostFailed(f"{method} failed; the server's log has the details.") from exc
        return ""

    async def _outcome(self, walk: Walk, node: Node, unsigned: str) -> TestOutcome:
        if not unsigned:
            return await self._run_once(walk, node)
        of_test = UnsignedTestOrigin(
            organization_id=walk.organization_id,
            agent_id=walk.agent_id,
            flow_id=walk.flow_id,
            node_id=node.id,
        )
        with unsigned_test(of_test) as test:
            outcome = await self._run_once(walk, node)
        if not test.was_used:
            return outcome
        said = f"{outcome.message or ''} The test was sent unsigned: {unsigned}".lstrip()
        return replace(outcome, message=said)

    async def _run_once(self, walk: Walk, node: Node) -> TestOutcome:
        started = time.monotonic()
        try:
            async with asyncio.timeout(RUN_SECONDS):
                result = await self._run(walk, node)
        except TimeoutError:
            message = f"The node did not end within {RUN_SECONDS:g} s, and was cancelled."
            return TestOutcome(status="failed", reason="timeout", message=message)
        if result.status == "queued" and result.delivery_id is not None:
            return await self._ended(walk.organization_id, result.delivery_id)
        took = int((time.monotonic() - started) * 1000)
        if result.status == "sent" or result.status == "skipped" or result.status == "failed":  # noqa: PLR1714  narrows the type
            return TestOutcome(
                status=result.status,
                reason=result.reason,
                message=result.message,
                duration_ms=took if result.status == "sent" else None,
                delivery_id=result.delivery_id,
            )
        return TestOutcome(status="pending", message=result.message, delivery_id=result.delivery_id)

    async def _ended(self, organization_id: str, delivery_id: str) -> TestOutcome:
        """Wait for the end of a delivery's first attempt, whichever process makes it."""
        until = time.monotonic() + self._wait_seconds
        pause = FIRST_POLL_SECONDS
        while True:
            outcome = await self._poll(organization_id, delivery_id)
            if outcome is not None:
                return outcome
            left = until - time.monotonic()
            if left <= 0:
                message = "The attempt has not ended yet. It is made all the same: look at the delivery for its outcome."
                return TestOutcome(status="pending", message=message, delivery_id=delivery_id)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, POLL_SECONDS)

    async def _poll(self, organization_id: str, delivery_id: str) -> TestOutcome | None:
        try:
            found = await self._queries.detail(delivery_id, organization_id)
        except StorageUnavailable:
            return None
        if found is None:
            return None
        shown = detail(*found)
        if shown.status not in FINISHED and not shown.attempts:
            return None
        attempt: Any = shown.attempt_log[-1] if shown.attempt_log else None
        common: dict[str, Any] = {"delivery_id": delivery_id}
        if attempt is not None:
            common |= {
                "status_code": attempt.status_code,
                "response": attempt.response or None,
                "duration_ms": attempt.duration_ms,
            }
        if shown.status == "delivered":
            return TestOutcome(status="delivered", **common)
        if attempt is not None and attempt.status_code is not None:
            message = f"The receiver answered {attempt.status_code}."
            if THROUGH_PROXY in (attempt.note or ""):
                message = (
                    f"{attempt.status_code} was {THROUGH_PROXY}, which may have written the answer itself."
                )
            return TestOutcome(status="failed", reason="bad_status", message=message, **common)
        reason = "not_sent" if attempt is None else "no_answer"
        return TestOutcome(status="failed", reason=reason, message=shown.last_error, **common)
