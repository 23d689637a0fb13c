"""The webhook node: its config, and enqueuing its webhook when a walk reaches it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from flowactions_hookspecs import (
    ConfigProblem,
    FlowNodeOrigin,
    Header,
    InTransaction,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    OutboundWebhook,
    Preview,
    Walk,
    config_schema,
)
from flowactions_plugin.egress.destination import Destination, parse_destination
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.signature import attempt_headers, folded, with_standard_headers
from flowactions_plugin.errors import BodyInvalid, EgressRefused, HeadersTooLarge, TooLarge
from flowactions_plugin.http.masking import MASK, masked_header, masked_url, reason_for_tenants
from flowactions_plugin.log_text import printable
from flowactions_plugin.nodes import faults, template
from flowactions_plugin.nodes.config import read_config, read_item
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.prepared import PreparedDelivery
from flowactions_plugin.queue.rules import (
    BODYLESS_METHODS,
    DROPPED_NAME_LENGTH,
    MAX_HEADER_NAME_BYTES,
    MAX_HEADER_VALUE_BYTES,
    attempts_of,
    check_headers_size,
    delays,
    delivery_headers,
    method_name,
    sendable_headers,
)
from flowactions_plugin.settings.model import Settings

log = logging.getLogger("flowactions")

NAME: Final = "webhook"
EVENT_TYPE: Final = "experience.flow_node.webhook"
ATTEMPTS_WITH_RETRY: Final = 4
SECRET_FIELD: Final = "webhookSecret"  # noqa: S105  a field's name

RETRY_FIELD: Final = "webhookRetryOnFailure"

_NOT_JSON: Final = re.compile(
    r"^\s*(?:application/(?:x-www-form-urlencoded|xml)|multipart/|text/xml)", re.IGNORECASE
)
"""Media types of forms and of XML."""

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

    @property
    def url(self) -> str:
        """Where the request is sent."""
        return self.webhook_url.strip()

    @property
    def place(self) -> tuple[str, str] | None:
        """Where it is dialled: what two spellings of one URL have in common; ``None`` if it cannot be used."""
        try:
            destination = parse_destination(self.url)
        except EgressRefused:
            return None
        return destination.key, destination.target

    @property
    def method(self) -> str:
        """The method that is sent."""
        return method_name(self.webhook_method) or "POST"

    @property
    def body(self) -> str:
        """The body, before variables are substituted."""
        return template.without_surrogates(self.webhook_body or "")

    @property
    def has_body(self) -> bool:
        """Whether it is sent with a body."""
        return self.method not in BODYLESS_METHODS


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


def node_type(node: WebhookNode, settings: Settings) -> NodeType:
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
        template_variables=template.VARIABLES,
        reach=node.reach,
        check=node.check,
        preview=node.preview,
    )


class WebhookNode:
    """What a webhook node does when a walk reaches it, and what an editor is told before: both by one `Reading`."""

    def __init__(self, outbox: Outbox, guard: EgressGuard) -> None:
        self._outbox = outbox
        self._guard = guard

    async def reach(self, walk: Walk, node: Node) -> NodeResult | InTransaction:
        """Check, substitute, and enqueue; the flow continues at once (§3.1, §7.2).

        The webhook is written in the transaction that removes the node's record.
        """
        outbox, reading = self._outbox, Reading(node, self._outbox.settings, template.variables_of(walk))
        try:
            try:
                webhook = reading.webhook(walk, node)
            except TooLarge as exc:
                outbox.count_refusal(exc)
                raise
            delivery = await outbox.new_delivery(webhook)
        except (BodyInvalid, EgressRefused, TooLarge) as exc:
            problem = reading.refused(exc)
            log.warning(
                "webhook node %s skipped: %s: %s",
                printable(node.id),
                problem.code,
                printable(str(exc), message=True),
                extra={"event": "webhook.skipped"},
            )
            return NodeResult(
                node_id=node.id,
                status="skipped",
                reason=problem.code,
                message=problem.message,
                halt=not reading.config.webhook_continue_on_failure,
            )
        return InTransaction(PreparedDelivery(outbox, delivery).write)

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config; the only network is the look-up of the URL's host (§2.4)."""
        return (await self._look(Reading(draft.node, self._outbox.settings)))[0]

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return the request that would leave, made by what makes the real one; nothing is sent or written."""
        reading = Reading(draft.node, self._outbox.settings, template.variables_of(walk))
        found, destination = await self._look(reading)
        url = template.without_surrogates(reading.config.url) if destination is None else destination.url
        shown = Preview(method=reading.config.method, url=masked_url(url) or None, problems=found)
        try:
            delivery, _ = self._outbox.serialize(reading.webhook(walk, draft.node), url, "")
        except (BodyInvalid, TooLarge):
            return shown
        signature = f"v1,{MASK}" if reading.config.webhook_secret else None
        headers = attempt_headers(delivery.headers, MASK, signature)
        if self._outbox.settings.standard_webhooks:
            headers = with_standard_headers(headers, MASK, signature)
        masked = [(key, value if value == signature else masked_header(key, value)) for key, value in headers]
        body = None if delivery.body is None else delivery.body.decode()
        return replace(shown, headers=tuple(Header(key=key, value=value) for key, value in masked), body=body)

    async def _look(self, reading: Reading) -> tuple[Sequence[ConfigProblem], Destination | None]:
        """Return what is wrong with a draft, and where its URL leads if it may be used."""
        found, authored = reading.problems(), reading.config.webhook_url
        try:
            destination, is_unknown = await self._guard.look_up(reading.config.url)
        except EgressRefused as exc:
            return faults.bounded([reading.refused(exc), *found]), None
        if is_unknown:
            said = f"The name {destination.host} was not found. Check its spelling. Each attempt looks it up again."
            unknown = faults.fault(authored, authored.index("://") + len("://"), "unknown_host", said)
            found = faults.bounded([*faults.at("webhookUrl", [unknown]), *found])
        return found, destination


class Reading:
    """A config with values of its variables: the webhook that it gives, why it gives none, and what is wrong with it.

    Args:
        node: has the config as its author has written it.
        settings: limit a body, and say which headers are the service's.
        variables: the values.

    Attributes:
        config: as it is read.
    """

    def __init__(self, node: Node, settings: Settings, variables: template.Variables = faults.SAMPLE) -> None:
        self._stored = node.config
        self._settings = settings
        self._variables = variables
        self.config, self._unusable = read_config(WebhookConfig, node.config)

    def webhook(self, walk: Walk, node: Node) -> OutboundWebhook:
        """Make the webhook that a node sends; nothing is checked of its URL.

        Raises:
            BodyInvalid: the body is no JSON.
            TooLarge: the body would be larger than these settings allow, or the headers would be too large.
        """
        body, config = self.body(), self.config
        retried = attempts_of(self._settings.retry_schedule, ATTEMPTS_WITH_RETRY)
        # What the event is about: this node, at this visit of this run (§2.5). An array keeps the parts apart.
        entity = msgspec.json.encode((walk.organization_id, walk.flow_id, walk.run_id, node.id, walk.visit))
        return OutboundWebhook(
            organization_id=walk.organization_id,
            agent_id=walk.agent_id,
            origin=origin(walk, node),
            event_type=EVENT_TYPE,
            entity=entity.decode(),
            url=config.url,
            method=config.webhook_method,
            headers=self.headers(config.webhook_headers),
            body=body,
            max_attempts=retried if config.webhook_retry_on_failure else 1,
            order_key=(walk.user_id or walk.run_id) if config.webhook_in_order else None,
        )

    def body(self) -> bytes | None:
        """Make the body: what the author wrote, variables substituted; ``None``: none is sent.

        Raises:
            BodyInvalid: it is no JSON; in its author's words and places.
            BodyTooLarge: it would be too large.
        """
        if not self.config.has_body:
            return None
        if "webhookBody" in self._unusable:
            raise BodyInvalid("The body must be text that holds JSON.")
        if not self.config.body.strip():
            return None
        try:
            return template.interpolate_json(
                self.config.body, self._variables, self._settings.max_body_bytes
            ).encode()
        except BodyInvalid as exc:
            raise faults.explained(self.config.body, exc) from None

    def headers(self, fields: Iterable[HeaderField]) -> tuple[Header, ...]:
        """Make custom headers; those without a name are left out.

        Raises:
            HeadersTooLarge: one of them, or all of them together, would be larger than receivers take.
        """
        headers: list[Header] = []
        size = 0
        for field in fields:
            if field.key.strip():
                text = template.without_surrogates(field.value)
                value = template.interpolate_header(text, self._variables, MAX_HEADER_VALUE_BYTES)
                headers.append(Header(key=field.key, value=value))
                size += len(value)
                check_headers_size(size)  # as it grows: what is too large is not built
        return tuple(headers)

    def refused(self, exc: BodyInvalid | EgressRefused | TooLarge) -> ConfigProblem:
        """Return why a config gives no webhook; its code is the reason of the node's result."""
        if isinstance(exc, BodyInvalid):
            path, line, column = ("webhookBody",), exc.line, exc.column
            return ConfigProblem(path=path, code=exc.reason, message=str(exc), line=line, column=column)
        if isinstance(exc, TooLarge):
            field = "webhookHeaders" if isinstance(exc, HeadersTooLarge) else "webhookBody"
            return ConfigProblem(path=(field,), code=exc.reason, message=str(exc))
        url, authored, offset = self.config.url, self.config.webhook_url, exc.offset
        if self.config.place is not None:  # it is the address that is refused
            offset = url.index("://") + len("://")
        before = None if offset is None else authored[: authored.index(url) + offset]
        line, column = (None, None) if before is None else template.place(before)
        code, said = "blocked_url" if url else "missing_url", reason_for_tenants(str(exc), url)
        return ConfigProblem(path=("webhookUrl",), code=code, message=said, line=line, column=column)

    def problems(self) -> Sequence[ConfigProblem]:
        """Return what is wrong with a config, except where its URL leads (§2.4)."""
        config = self.config
        found = [*faults.wrong_types(self._unusable - {"webhookBody"})]
        for rule in (faults.tokens_not_substituted, faults.fragment, faults.invisible):
            found += faults.at("webhookUrl", rule(config.webhook_url))
        if method_name(config.webhook_method) is None:
            message = "This is not the name of an HTTP method that can be sent: POST is used."
            found.append(faults.warning("invalid_method", message, "webhookMethod"))
        found += faults.at("webhookHeaders", self._of_headers())
        found += self._of_body()
        secret = config.webhook_secret or ""
        found += faults.at(SECRET_FIELD, (*faults.tokens_not_substituted(secret), *faults.badly_pasted(secret)))
        return faults.bounded(found)

    def _of_headers(self) -> Iterator[ConfigProblem]:
        """Find what is wrong with custom headers, each by its index in the author's list."""
        items, is_small = self._stored.get("webhookHeaders"), True
        for index, item in enumerate(items if isinstance(items, list | tuple) else ()):
            field = read_item(HeaderField, item)
            if field is None:
                yield faults.warning("wrong_type", "This is not text, so the header is left out.", index)
                continue
            for problem in faults.at(index, self._of_header(field)):
                is_small &= problem.severity == "warning"
                yield problem
        try:
            self._sent(self.headers(self.config.webhook_headers))
        except HeadersTooLarge as exc:
            if is_small:
                yield replace(self.refused(exc), path=())

    def _of_header(self, field: HeaderField) -> Iterator[ConfigProblem]:
        """Find what is wrong with one header."""
        name = field.key.strip()
        if not name:
            if field.value.strip():
                yield faults.warning("header_dropped", "A header without a name is left out.", "key")
            return
        try:
            rendered = self.headers([field])
            headers, dropped = self._sent(rendered)
        except HeadersTooLarge as exc:
            yield replace(self.refused(exc), path=("value",))
            return
        if dropped:
            why = faults.warning("header_dropped", _why_dropped(name))
            yield from faults.at("key", [next(faults.invisible(field.key, "header_dropped"), why)])
            return
        if headers[-1][1] != rendered[-1].value.strip():
            message = "Line breaks and other control characters are sent as spaces."
            yield faults.warning("control_characters", message, "value")
        else:
            yield from faults.at("value", faults.invisible(field.value))
        if folded(name) == "content-type" and _NOT_JSON.search(field.value) and self.config.has_body:
            message = "The body is JSON, and not what this header says. Remove this header."
            yield faults.warning("not_json", message, "value")
        yield from faults.at("value", faults.unknown_tokens(field.value))

    def _sent(self, headers: Iterable[Header]) -> tuple[Sequence[tuple[str, str]], Sequence[str]]:
        """Return the headers that are sent, and the names of those that are not."""
        standard = self._settings.standard_webhooks
        return delivery_headers(headers, event_id="", event_type="", has_body=False, standard_webhooks=standard)

    def _of_body(self) -> Iterator[ConfigProblem]:
        """Find what is wrong with a body."""
        text, wrong = self.config.body, None
        if not self.config.has_body:
            if text.strip() or "webhookBody" in self._unusable:
                message = f"{self.config.method} is sent without a body."
                yield faults.warning("body_dropped", message, "webhookBody")
            return
        try:
            self.body()
        except (BodyInvalid, TooLarge) as exc:
            wrong = self.refused(exc)
            if isinstance(exc, TooLarge):
                yield wrong
                return
        # What is not a variable is told first: it may well be why the body is not JSON.
        for unknown in faults.at("webhookBody", faults.unknown_tokens(text)):
            if wrong is None or (unknown.line, unknown.column) != (wrong.line, wrong.column):
                yield unknown
        yield from [wrong] if wrong else faults.at("webhookBody", faults.tokens_in_keys(text))


def _why_dropped(name: str) -> str:
    """Say why a header is not sent: it is ours, or its name is none."""
    shown = template.without_surrogates(name[:DROPPED_NAME_LENGTH])
    if len(name) <= MAX_HEADER_NAME_BYTES and sendable_headers([(name, "")], ""):
        return f"We set {shown}. Your value is ignored."
    return (
        f"{shown} is not the name of a header, so the header is left out. A name has letters from A to Z, digits and hyphens,"
        f" at most {MAX_HEADER_NAME_BYTES}, and no spaces, colons, quotes or variables."
    )


def origin(walk: Walk, node: Node) -> FlowNodeOrigin:
    """Return the origin by which the host finds a node's signing secret."""
    where = {"organization_id": walk.organization_id, "agent_id": walk.agent_id, "flow_id": walk.flow_id}
    return FlowNodeOrigin(**where, node_id=node.id)
