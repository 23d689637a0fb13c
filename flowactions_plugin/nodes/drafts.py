"""Check and preview of our two types: the rules of `checks`, and what only the network or the database knows."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from flowactions_hookspecs import ConfigProblem, Header, NodeDraft, Preview, Walk
from flowactions_plugin.chat.calls import SEND_SECONDS, seconds_from_now
from flowactions_plugin.chat.directory import NOT_CHECKED, TargetFault
from flowactions_plugin.chat.failures import advice
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.egress.destination import Destination, parse_destination
from flowactions_plugin.egress.guard import HOW_TO_ALLOW, EgressGuard
from flowactions_plugin.egress.signature import attempt_headers
from flowactions_plugin.egress.standard_webhooks import with_standard_headers
from flowactions_plugin.errors import BodyInvalid, EgressRefused, NotConfigured, StorageUnavailable, TooLarge
from flowactions_plugin.http.masking import MASK, masked_header, masked_url
from flowactions_plugin.nodes.chat_message import NOT_CONNECTED, ChatMessageConfig
from flowactions_plugin.nodes.checks import SAMPLE, bounded, chat_problems, webhook_problems
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.nodes.template import Variables, chat_message, variables_of, without_surrogates
from flowactions_plugin.nodes.webhook import WebhookConfig, render, url_refusal
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.rules import method_name

log = logging.getLogger("flowactions")

LEADS_ELSEWHERE: Final = (
    "The URL's host leads to an address to which requests are not allowed. In production, private and local addresses"
    " are refused."
)
"""Without the address: what a name resolves to here is nothing that an author has to know."""


class WebhookDrafts:
    """Checks and previews drafts of webhook nodes.

    Args:
        outbox: makes the delivery that a preview shows.
        guard: decides where requests may go, as at enqueue.
    """

    def __init__(self, outbox: Outbox, guard: EgressGuard) -> None:
        self._outbox = outbox
        self._guard = guard

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config; the only network is the look-up of the URL's host (§2.4)."""
        config, _ = read_config(WebhookConfig, draft.node.config)
        return (await self._problems(draft, config, SAMPLE))[0]

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return the request that would leave, made by what makes the real one; nothing is sent or written."""
        config, unusable = read_config(WebhookConfig, draft.node.config)
        problems, destination = await self._problems(draft, config, variables_of(walk))
        url = without_surrogates(config.webhook_url.strip()) if destination is None else destination.url
        shown = Preview(
            method=method_name(config.webhook_method) or "POST", url=masked_url(url) or None, problems=problems
        )
        try:
            webhook = render(config, unusable, walk, draft.node, self._outbox.max_body_bytes)
            delivery, _ = self._outbox.serialize(webhook, url, "")
        except (BodyInvalid, TooLarge):
            return shown
        signature = f"v1,{MASK}" if config.webhook_secret else None
        headers = attempt_headers(delivery.headers, MASK, signature)
        if self._outbox.standard_webhooks:
            headers = with_standard_headers(headers, MASK, signature)
        return replace(
            shown,
            headers=tuple(
                Header(key=name, value=value if value == signature else masked_header(name, value))
                for name, value in headers
            ),
            body=None if delivery.body is None else delivery.body.decode(),
        )

    async def _problems(
        self, draft: NodeDraft, config: WebhookConfig, variables: Variables
    ) -> tuple[Sequence[ConfigProblem], Destination | None]:
        problems = webhook_problems(
            draft.node.config,
            self._outbox.max_body_bytes,
            variables,
            standard_webhooks=self._outbox.standard_webhooks,
        )
        url = config.webhook_url.strip()
        try:
            destination, is_unknown = await self._guard.look_up(url)
        except EgressRefused as exc:
            refused = ConfigProblem(path=("webhookUrl",), code=url_refusal(config), message=_public(url, exc))
            return bounded([refused, *problems]), None
        if not is_unknown:
            return problems, destination
        unknown = ConfigProblem(
            path=("webhookUrl",),
            code="unknown_host",
            message=f"{destination.host} has no address now: check its spelling. Each attempt looks it up again.",
            severity="warning",
        )
        return bounded([unknown, *problems]), destination


def _public(url: str, refusal: EgressRefused) -> str:
    """Says why a URL is refused, without an address that its name was resolved to, and without advice for operators."""
    try:
        host = parse_destination(url).host
    except EgressRefused as exc:
        return str(exc)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return LEADS_ELSEWHERE
    return str(refusal).removesuffix(HOW_TO_ALLOW)


class ChatDrafts:
    """Checks and previews drafts of chat-message nodes.

    Args:
        chat: the chat part; or why chat cannot be used in this host.
    """

    def __init__(self, chat: Chat | NotConfigured) -> None:
        self._chat = chat

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config; the provider is asked only when the draft says so."""
        config, _ = read_config(ChatMessageConfig, draft.node.config)
        return await self._problems(draft, config, SAMPLE)

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return the message that would be posted; nothing is sent or written."""
        config, _ = read_config(ChatMessageConfig, draft.node.config)
        variables = variables_of(walk)
        problems = await self._problems(draft, config, variables)
        text = without_surrogates(chat_message(config.chat_message_text, variables))
        return Preview(target=without_surrogates(config.target) or None, text=text or None, problems=problems)

    async def _problems(
        self, draft: NodeDraft, config: ChatMessageConfig, variables: Variables
    ) -> Sequence[ConfigProblem]:
        problem = await self._of_connection(draft, config)
        problems = chat_problems(draft.node.config, variables)
        return problems if problem is None else bounded([problem, *problems])

    async def _of_connection(self, draft: NodeDraft, config: ChatMessageConfig) -> ConfigProblem | None:
        chat = self._chat
        if isinstance(chat, NotConfigured):
            return ConfigProblem(code="not_connected", message=f"{NOT_CONNECTED} {chat}")
        until = seconds_from_now(SEND_SECONDS)
        try:
            stored = await chat.messenger.connection_of(draft.organization_id, until)
        except StorageUnavailable as exc:
            log.warning(
                "the chat connection could not be read: %s", exc, extra={"event": "draft.chat_not_checked"}
            )
            message = "The database did not answer, so the chat connection was not checked."
            return ConfigProblem(code=NOT_CHECKED, message=message, severity="warning")
        if stored is None:
            return ConfigProblem(code="not_connected", message=NOT_CONNECTED)
        unusable = chat.connections.reason(stored)
        if unusable is not None:
            return ConfigProblem(code=unusable, message=advice(unusable))
        if draft.ask_provider and config.target:
            fault = await chat.directory.target_fault(
                stored, config.target, to_member=config.to_member, until=until
            )
            return None if fault is None else _of_target(fault, config)
        return None


def _of_target(fault: TargetFault, config: ChatMessageConfig) -> ConfigProblem:
    return ConfigProblem(
        path=(config.target_field,) if fault.of_target else (),
        code=fault.code,
        message=fault.message,
        severity="error" if fault.certain else "warning",
    )
