"""The webhook node: its config, and enqueuing its webhook when a walk reaches it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from flowactions_hookspecs import (
    FlowNodeOrigin,
    Header,
    InTransaction,
    Node,
    NodeResult,
    NodeType,
    OutboundWebhook,
    Walk,
    config_schema,
)
from flowactions_hookspecs.nodes import Check, MakePreview
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.errors import BodyInvalid, EgressRefused, TooLarge
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.nodes.faults import explained
from flowactions_plugin.nodes.template import (
    VARIABLES,
    Variables,
    interpolate_header,
    interpolate_json,
    variables_of,
    without_surrogates,
)
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.prepared import PreparedDelivery
from flowactions_plugin.queue.rules import (
    BODYLESS_METHODS,
    MAX_HEADER_VALUE_BYTES,
    attempts_of,
    check_headers_size,
    delays,
    method_name,
)
from flowactions_plugin.settings.model import Settings

log = logging.getLogger("flowactions")

NAME: Final = "webhook"
EVENT_TYPE: Final = "experience.flow_node.webhook"
ATTEMPTS_WITH_RETRY: Final = 4
SECRET_FIELD: Final = "webhookSecret"  # noqa: S105  a field's name

RETRY_FIELD: Final = "webhookRetryOnFailure"

ICON: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke="currentColor" '
    'stroke-width="2" stroke-linecap="round" stroke-linejoin="round"><circle cx="6" cy="17" r="3"/>'
    '<circle cx="18" cy="17" r="3"/><circle cx="12" cy="6" r="3"/>'
    '<path d="M10.5 8.6 7.5 14.4M13.5 8.6l3 5.8M9 17h6"/></svg>'
)


class HeaderField(msgspec.Struct, frozen=True):
    """One custom header in the editor."""

    key: Annotated[str, Meta(title="Name")] = ""
    value: Annotated[str, Meta(title="Value", description="May contain {{userId}} and {{content}}.")] = ""


class WebhookConfig(msgspec.Struct, frozen=True, rename="camel"):
    """The node's ``data.config`` (§2.4)."""

    webhook_url: Annotated[
        str,
        Meta(
            title="URL",
            description="Where the request is sent. In production, private and local addresses are refused.",
            pattern="^[hH][tT][tT][pP][sS]?://",
        ),
    ]
    webhook_method: Annotated[
        str,
        Meta(
            title="Method",
            description="GET and HEAD are sent without a body.",
            examples=["POST", "PUT", "PATCH", "DELETE", "GET", "HEAD"],
        ),
    ] = "POST"
    webhook_headers: Annotated[
        tuple[HeaderField, ...],
        Meta(title="Headers", description="Sent with every attempt. Rows without a name are left out."),
    ] = ()
    webhook_body: (
        Annotated[
            str,
            Meta(
                title="Body",
                description="JSON. {{userId}} and {{content}} are filled in and can never break the JSON.",
            ),
        ]
        | UnsetType
    ) = UNSET
    webhook_secret: (
        Annotated[
            str,
            Meta(
                title="Signing secret",
                description="When set, every request carries a signature that the receiver can verify.",
            ),
        ]
        | UnsetType
    ) = UNSET
    webhook_retry_on_failure: Annotated[
        bool,
        Meta(
            title="Retry when delivery fails",
            description=(
                "In both cases a request can arrive twice: if the receiver closes the connection without an answer, it may be "
                "sent again at once."
            ),
        ),
    ] = False
    webhook_in_order: Annotated[
        bool,
        Meta(
            title="Send one after another",
            description=(
                "Requests to this URL for the same user are sent in the order in which the flow reached them. Each waits until the "
                "one before has arrived or was given up."
            ),
        ),
    ] = False
    webhook_continue_on_failure: Annotated[
        bool,
        Meta(
            title="Continue when the webhook cannot be queued",
            description="Off: the flow stops here when the URL is missing or refused, or the body is not JSON.",
        ),
    ] = True


UI_SCHEMA: Final[dict[str, Any]] = {
    "ui:order": [*WebhookConfig.__struct_encode_fields__, "*"],
    "webhookUrl": {"ui:placeholder": "https://example.com/hooks/orders"},
    "webhookHeaders": {"items": {"ui:title": "Header", "value": {"ui:options": {"templates": True}}}},
    "webhookBody": {
        "ui:widget": "textarea",
        "ui:placeholder": '{"user": {{userId}}, "message": {{content}}}',
        "ui:options": {"rows": 6, "templates": True, "language": "json"},
    },
    SECRET_FIELD: {"ui:widget": "password"},
}


def attempts_in_words(waits: Sequence[float], tick_seconds: float | None) -> str:
    """Return a sentence on a webhook's attempts and their times, for the flow's author (§2.4).

    Args:
        waits: seconds from each attempt that fails to the next one; without any, it has one attempt.
        tick_seconds: seconds from one tick of the worker to the next; ``None``: it delivers continuously.
    """
    number = f"{len(waits) + 1} attempts" if waits else "1 attempt"
    first = "at once" if tick_seconds is None else f"within {_span(tick_seconds)}"
    if not waits:
        return f"{number}: {first}."
    if tick_seconds is not None:
        # The delay begins when an attempt ends, which is after its tick began; the first tick after the delay claims the row.
        waits = [(int(wait / tick_seconds) + 1) * tick_seconds for wait in waits]
    *others, last = map(_span, accumulate(waits))
    later = f"{', '.join(others)} and {last}" if others else last
    return f"{number}: {first}, then about {later} after the first."


def _span(seconds: float) -> str:
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * size or seconds == size:
            return f"{round(seconds / size, 1):g} {unit}"
    return f"{round(seconds, 1):g} s"


def node_type(node: WebhookNode, check: Check, preview: MakePreview, settings: Settings) -> NodeType:
    """Describe the node type to the flow editor, with the attempts that these settings give it."""
    schedule = settings.retry_schedule
    waits = delays(attempts_of(schedule, ATTEMPTS_WITH_RETRY), schedule)
    tick_seconds = settings.tick_seconds if settings.delivery == "scheduled" else None
    schema = config_schema(WebhookConfig)
    retry = schema["properties"][RETRY_FIELD]
    once, several = attempts_in_words((), tick_seconds), attempts_in_words(waits, tick_seconds)
    retry["description"] = f"Off, {once}\nOn, up to {several}\n{retry['description']}"
    return NodeType(
        name=NAME,
        title="Webhook",
        description=(
            "Send an HTTP request to your own systems. Signed if you set a secret. "
            f"One attempt; with retries on, up to {len(waits) + 1}."
        ),
        category="Integrations",
        icon=ICON,
        config_schema=schema,
        ui_schema=UI_SCHEMA,
        secret_fields=(SECRET_FIELD,),
        template_variables=VARIABLES,
        reach=node.reach,
        check=check,
        preview=preview,
    )


class WebhookNode:
    """What reaching a webhook node does: check, substitute, enqueue. The flow continues at once (§3.1, §7.2)."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def reach(self, walk: Walk, node: Node) -> NodeResult | InTransaction:
        """Check and substitute; the webhook is written in the transaction that removes the node's record (§3.1)."""
        config, unusable = read_config(WebhookConfig, node.config)
        outbox = self._outbox
        try:
            try:
                webhook = render(config, unusable, walk, node, outbox.settings)
            except TooLarge as exc:
                outbox.count_refusal(exc)
                raise
            delivery = await outbox.new_delivery(webhook)
        except (BodyInvalid, TooLarge) as exc:
            return _skipped(node, config, exc.reason, str(exc))
        except EgressRefused as exc:
            return _skipped(node, config, url_refusal(config), str(exc))
        return InTransaction(PreparedDelivery(outbox, delivery).write)


def url_refusal(config: WebhookConfig) -> str:
    """Return the reason of a URL that the egress guard refuses."""
    return "blocked_url" if config.webhook_url.strip() else "missing_url"


def place_of(stored: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return where a stored config sends, as it is dialled; ``None`` if its URL cannot be used.

    Two spellings of one URL give the same scheme, host and port, and the same path and query.
    """
    config, _ = read_config(WebhookConfig, stored)
    try:
        destination = parse_destination(config.webhook_url.strip())
    except EgressRefused:
        return None
    return destination.key, destination.target


def has_body(config: WebhookConfig) -> bool:
    """Return whether the config's method is sent with a body."""
    return (method_name(config.webhook_method) or "POST") not in BODYLESS_METHODS


def render_body(
    config: WebhookConfig, variables: Variables, unusable: frozenset[str], limit: int
) -> bytes | None:
    """Make the body: what the author wrote, variables substituted; ``None``: none is sent.

    Raises:
        BodyInvalid: it is no JSON; in its author's words and places.
        BodyTooLarge: it would be larger than ``limit`` bytes.
    """
    if not has_body(config):
        return None
    if "webhookBody" in unusable:
        raise BodyInvalid("The body must be text that holds JSON.")
    text = without_surrogates(config.webhook_body or "")
    try:
        return interpolate_json(text, variables, limit).encode() if text.strip() else None
    except BodyInvalid as exc:
        raise explained(text, exc) from None


def render_headers(fields: Iterable[HeaderField], variables: Variables) -> tuple[Header, ...]:
    """Make the custom headers; those without a name are left out.

    Raises:
        HeadersTooLarge: one of them, or all of them together, would be larger than receivers take.
    """
    headers: list[Header] = []
    size = 0
    for field in fields:
        if field.key.strip():
            value = interpolate_header(without_surrogates(field.value), variables, MAX_HEADER_VALUE_BYTES)
            headers.append(Header(key=field.key, value=value))
            size += len(value)
            check_headers_size(size)  # as it grows: what is too large is not built
    return tuple(headers)


def origin(walk: Walk, node: Node) -> FlowNodeOrigin:
    """Return the origin by which the host finds a node's signing secret."""
    return FlowNodeOrigin(
        organization_id=walk.organization_id, agent_id=walk.agent_id, flow_id=walk.flow_id, node_id=node.id
    )


def render(
    config: WebhookConfig, unusable: frozenset[str], walk: Walk, node: Node, settings: Settings
) -> OutboundWebhook:
    """Make the webhook that a node sends; nothing is checked of its URL.

    Raises:
        BodyInvalid: the body is no JSON.
        TooLarge: the body would be larger than these settings allow, or the headers would be too large.
    """
    variables = variables_of(walk)
    body = render_body(config, variables, unusable, settings.max_body_bytes)
    retried = attempts_of(settings.retry_schedule, ATTEMPTS_WITH_RETRY)
    return OutboundWebhook(
        organization_id=walk.organization_id,
        agent_id=walk.agent_id,
        origin=origin(walk, node),
        event_type=EVENT_TYPE,
        entity=_entity(walk, node),
        url=config.webhook_url.strip(),
        method=config.webhook_method,
        headers=render_headers(config.webhook_headers, variables),
        body=body,
        max_attempts=retried if config.webhook_retry_on_failure else 1,
        order_key=(walk.user_id or walk.run_id) if config.webhook_in_order else None,
    )


def _entity(walk: Walk, node: Node) -> str:
    """Name what the event is about: this node, at this visit of this run (§2.5)."""
    # A JSON array keeps the parts apart, whatever is in them.
    parts = (walk.organization_id, walk.flow_id, walk.run_id, node.id, walk.visit)
    return msgspec.json.encode(parts).decode()


def _skipped(node: Node, config: WebhookConfig, reason: str, message: str) -> NodeResult:
    log.warning("webhook node %s skipped: %s", printable(node.id), reason, extra={"event": "webhook.skipped"})
    return NodeResult(
        node_id=node.id,
        status="skipped",
        reason=reason,
        message=message,
        halt=not config.webhook_continue_on_failure,
    )
