"""Drafts: check and preview of our two types, and one real send of any type, by the real path.

A check is the rules of `checks`, and what only the network or the database knows.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import asdict, replace

from flowactions_hookspecs import (
    ConfigProblem,
    Eager,
    Header,
    Host,
    Node,
    NodeDraft,
    NodeResult,
    OriginGone,
    Preview,
    TestOutcome,
    UnsignedTestOrigin,
    Walk,
)
from flowactions_plugin.chat.calls import SEND_SECONDS, seconds_from_now
from flowactions_plugin.chat.directory import NOT_CHECKED
from flowactions_plugin.chat.failures import REVOKED, advice
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.clock import new_token, timer
from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.signature import attempt_headers, with_standard_headers
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY
from flowactions_plugin.errors import (
    BodyInvalid,
    EgressRefused,
    HostFailed,
    NotConfigured,
    StorageUnavailable,
    TooLarge,
)
from flowactions_plugin.host_answers import checked, failing, saved_node
from flowactions_plugin.http.masking import MASK, masked_header, masked_url, reason_for_tenants
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import DeliveryDetail
from flowactions_plugin.nodes.chat_message import NOT_CONNECTED, NOT_SET_UP, ChatMessageConfig
from flowactions_plugin.nodes.checks import SAMPLE, bounded, chat_problems, webhook_problems
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.nodes.faults import fault, warning
from flowactions_plugin.nodes.template import Variables, chat_message, variables_of, without_surrogates
from flowactions_plugin.nodes.webhook import NAME as WEBHOOK
from flowactions_plugin.nodes.webhook import (
    RETRY_FIELD,
    SECRET_FIELD,
    WebhookConfig,
    origin,
    place_of,
    render,
    url_refusal,
)
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.enqueue import Outbox, unsigned_test
from flowactions_plugin.queue.host_calls import call_host
from flowactions_plugin.queue.rules import FINISHED, method_name

log = logging.getLogger("flowactions")

TESTS_A_MINUTE: Final = 10
"""Of one organization, in all processes together."""

RUN_SECONDS: Final = 30.0
"""How long a node of any type may run in a test."""


class WebhookDrafts:
    """Checks and previews drafts of webhook nodes, by the outbox and the rules that a real one passes."""

    def __init__(self, outbox: Outbox, guard: EgressGuard) -> None:
        self._outbox = outbox
        self._guard = guard

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config; the only network is the look-up of the URL's host (§2.4)."""
        return (await self._problems(draft, SAMPLE))[0]

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return the request that would leave, made by what makes the real one; nothing is sent or written."""
        config, unusable = read_config(WebhookConfig, draft.node.config)
        problems, destination = await self._problems(draft, variables_of(walk))
        url = without_surrogates(config.webhook_url.strip()) if destination is None else destination.url
        shown = Preview(
            method=method_name(config.webhook_method) or "POST", url=masked_url(url) or None, problems=problems
        )
        try:
            webhook = render(config, unusable, walk, draft.node, self._outbox.settings)
            delivery, _ = self._outbox.serialize(webhook, url, "")
        except (BodyInvalid, TooLarge):
            return shown
        signature = f"v1,{MASK}" if config.webhook_secret else None
        headers = attempt_headers(delivery.headers, MASK, signature)
        if self._outbox.settings.standard_webhooks:
            headers = with_standard_headers(headers, MASK, signature)
        masked = [
            (name, value if value == signature else masked_header(name, value)) for name, value in headers
        ]
        return replace(
            shown,
            headers=tuple(Header(key=name, value=value) for name, value in masked),
            body=None if delivery.body is None else delivery.body.decode(),
        )

    async def _problems(
        self, draft: NodeDraft, variables: Variables
    ) -> tuple[Sequence[ConfigProblem], Destination | None]:
        """Return what is wrong with a draft, and where its URL leads if it may be used."""
        problems = webhook_problems(
            draft.node.config,
            self._outbox.settings.max_body_bytes,
            variables,
            standard_webhooks=self._outbox.settings.standard_webhooks,
        )
        config, _ = read_config(WebhookConfig, draft.node.config)
        authored, url, destination = config.webhook_url, config.webhook_url.strip(), None
        offset: int | None = url.find("://") + len("://")
        try:
            destination, is_unknown = await self._guard.look_up(url)
        except EgressRefused as exc:
            code, message = url_refusal(config), reason_for_tenants(str(exc), url)
            if place_of(draft.node.config) is None:  # it is not the address that is refused
                offset = exc.offset
        else:
            if not is_unknown:
                return problems, destination
            code = "unknown_host"
            message = f"The name {destination.host} was not found. Check its spelling. Each attempt looks it up again."
        place = None if offset is None else authored.index(url) + offset
        found = warning(code, message) if place is None else fault(authored, place, code, message)
        found = replace(found, path=("webhookUrl",), severity="error" if destination is None else "warning")
        return bounded([found, *problems]), destination


class ChatDrafts:
    """Checks and previews drafts of chat-message nodes, if chat can be used in this host."""

    def __init__(self, chat: Chat | NotConfigured) -> None:
        self._chat = chat

    async def check(self, draft: NodeDraft, variables: Variables = SAMPLE) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config and the connection; the provider is asked only when the draft says so."""
        problem = await self._of_connection(draft)
        problems = chat_problems(draft.node.config, variables)
        return problems if problem is None else bounded([problem, *problems])

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return the message that would be posted; nothing is sent or written."""
        config, _ = read_config(ChatMessageConfig, draft.node.config)
        variables = variables_of(walk)
        problems = await self.check(draft, variables)
        text = without_surrogates(chat_message(config.chat_message_text, variables))
        return Preview(target=without_surrogates(config.target) or None, text=text or None, problems=problems)

    async def _of_connection(self, draft: NodeDraft) -> ConfigProblem | None:
        """Return what is wrong with the connection, or with the target as the provider knows it."""
        chat, until = self._chat, seconds_from_now(SEND_SECONDS)
        if isinstance(chat, NotConfigured):
            return ConfigProblem(code="not_connected", message=NOT_SET_UP)
        try:
            stored = await chat.messenger.connection_of(draft.organization_id, until)
        except StorageUnavailable as exc:
            log.warning(
                "the chat connection could not be read: %s", exc, extra={"event": "draft.chat_not_checked"}
            )
            return warning(NOT_CHECKED, "The database did not answer, so the chat connection was not checked.")
        if stored is None:
            return ConfigProblem(code="not_connected", message=NOT_CONNECTED)
        unusable = chat.connections.reason(stored)
        if unusable is not None:
            return ConfigProblem(code=unusable, message=advice(unusable))
        config, _ = read_config(ChatMessageConfig, draft.node.config)
        if not (draft.ask_provider and config.target):
            return None
        wrong = await chat.directory.target_problem(
            stored, config.target, to_member=config.to_member, until=until
        )
        # A token that no longer works is no fault of the target.
        return wrong if wrong is None or wrong.code in REVOKED else replace(wrong, path=(config.target_field,))


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
        wait_seconds: float = 12.0,
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
        unsigned: str | None = "tests of this type of node are not signed."
        if node.type == WEBHOOK:
            node = replace(node, config={**node.config, RETRY_FIELD: False})
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
        # It is signed if it goes where the saved node sends, whatever secret the author has typed.
        typed = node.config.get(SECRET_FIELD)
        saved = await saved_node(self._host, walk, node)
        if saved is None or saved.type != WEBHOOK:
            return "save the node first." if typed else ""
        place = place_of(saved.config)
        if place is None or place != place_of(node.config):
            return "its URL differs from the saved one." if typed or saved.config.get(SECRET_FIELD) else ""
        try:
            # Before anything is written: a delivery whose secret the host cannot give would wait for days.
            with failing(self._host, "signing_secret", OriginGone):
                answer = await call_host(self._host.signing_secret, origin(walk, node))
                secret = checked(self._host, "signing_secret", answer)
        except OriginGone:
            return "save the node first."
        return "the saved node has no signing secret. Save the node first." if typed and not secret else None

    async def _outcome(self, walk: Walk, node: Node, unsigned: str | None) -> TestOutcome:
        """Run a node, signed or not."""
        if unsigned is None:
            return await self._run_once(walk, node)
        with unsigned_test(UnsignedTestOrigin(**asdict(origin(walk, node)))) as test:
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
        until = timer() + self._wait_seconds
        pause = 0.05
        while True:
            with suppress(StorageUnavailable):
                found = await self._queries.delivery(Scope(organization_id), delivery_id)
                if found is not None and (found.row.status in FINISHED or found.row.attempts):
                    return _outcome_of(found.row)
            left = until - timer()
            if left <= 0:
                message = "The attempt has not ended yet. It continues: look at the delivery for its outcome."
                return TestOutcome(status="pending", message=message, delivery_id=delivery_id)
            await asyncio.sleep(min(pause, left))
            pause = min(pause * 1.5, 0.5)


def _outcome_of(delivery: DeliveryDetail) -> TestOutcome:
    """Return what a delivery's first attempt came to."""
    outcome = TestOutcome(
        status="failed", reason="not_sent", message=delivery.last_error, delivery_id=delivery.id
    )
    if delivery.attempt_log:
        attempt = delivery.attempt_log[-1]
        message, status = delivery.last_error, attempt.status_code
        if status is not None:
            message = f"The receiver answered {status}."
            if THROUGH_PROXY in (attempt.note or ""):
                message = f"{status} was {THROUGH_PROXY}, which may have written the answer itself."
        outcome = replace(
            outcome,
            reason="no_answer" if status is None else "bad_status",
            message=message,
            status_code=status,
            response=attempt.response or None,
            duration_ms=attempt.duration_ms,
        )
    if delivery.status == "delivered":
        return replace(outcome, status="delivered", reason=None, message=None)
    return outcome


def _failed(reason: str, message: str) -> TestOutcome:
    """Return the outcome of a test that could not be made."""
    return TestOutcome(status="failed", reason=reason, message=message)
