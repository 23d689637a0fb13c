"""What is wrong with a config of our two types: pure rules, by the functions that run the node (§2.1, §2.4).

A problem of severity ``error`` keeps the node from running when it is reached, and nothing else does, as far as the
config says. Its code is the reason of the node's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal

from flowactions_hookspecs import ConfigProblem
from flowactions_plugin.errors import BodyInvalid, HeadersTooLarge, TooLarge
from flowactions_plugin.nodes.chat_message import (
    EMPTY_MESSAGE,
    MISSING_CHANNEL,
    MISSING_PERSON,
    ChatMessageConfig,
    target_of,
)
from flowactions_plugin.nodes.config import read_config, read_item
from flowactions_plugin.nodes.template import (
    CHAT_MESSAGE_LENGTH,
    Variables,
    chat_message,
    is_chat_message_cut,
    without_surrogates,
)
from flowactions_plugin.nodes.template_check import (
    Fault,
    json_fault,
    known_tokens,
    tokens_in_keys,
    unknown_tokens,
)
from flowactions_plugin.nodes.webhook import (
    HeaderField,
    WebhookConfig,
    has_body,
    render_body,
    render_header,
    render_headers,
)
from flowactions_plugin.outbox.rules import (
    MAX_HEADER_NAME_BYTES,
    delivery_headers,
    method_name,
    sendable_headers,
)

Severity = Literal["error", "warning"]

SAMPLE: Final = Variables("x", "x")
"""Values for a check without a walk: short, and not empty."""

LONG: Final = Variables("x" * 255, "x" * CHAT_MESSAGE_LENGTH)
"""Values as long as an end user may well write."""

MOST_PROBLEMS: Final = 100
MOST_TOKENS: Final = 20
"""Problems of one kind in one text."""

NAME_LENGTH: Final = 80

USUAL_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

WEBHOOK_FALLBACKS: Final = {
    "webhookUrl": "This is not text, and counts as missing.",
    "webhookMethod": "This is not text: POST is used.",
    "webhookHeaders": "This is not a list: no custom headers are sent.",
    "webhookSecret": "This is not text, so nothing can be signed with it.",
    "webhookRetryOnFailure": "This is neither true nor false: there is a single attempt.",
    "webhookContinueOnFailure": "This is neither true nor false: the flow continues.",
}
"""Field → what is done when its value has the wrong type. The body has a rule of its own."""

CHAT_FALLBACKS: Final = {
    "chatMessageText": "This is not text, and counts as empty.",
    "chatActionType": "Only dm and channel are known: it is sent to the channel.",
    "chatChannelId": "This is not text, and counts as missing.",
    "chatUserId": "This is not text, and counts as missing.",
    "chatRetryOnFailure": "This is neither true nor false: there is a single attempt.",
    "chatContinueOnFailure": "This is neither true nor false: the flow continues.",
}


def webhook_problems(
    stored: Mapping[str, Any], limit: int, variables: Variables = SAMPLE
) -> Sequence[ConfigProblem]:
    """Finds what is wrong with a webhook's config, except where its URL leads.

    Args:
        stored: the config as the author has it.
        limit: bytes of a body at the most.
        variables: the values.
    """
    config, unusable = read_config(WebhookConfig, stored)
    found: list[ConfigProblem] = []
    found += _wrong_types(WEBHOOK_FALLBACKS, unusable)
    url = config.webhook_url
    found += _texts("webhookUrl", "token_not_substituted", [*known_tokens(url), *unknown_tokens(url)])
    found += _method(config)
    found += _headers(stored.get("webhookHeaders"), config, variables)
    found += _body(config, unusable, variables, limit)
    return bounded(found)


def chat_problems(stored: Mapping[str, Any], variables: Variables = SAMPLE) -> Sequence[ConfigProblem]:
    """Finds what is wrong with a chat message's config, except what only the provider knows.

    Args:
        stored: the config as the author has it.
        variables: the values.
    """
    config, unusable = read_config(ChatMessageConfig, stored)
    found = list(_wrong_types(CHAT_FALLBACKS, unusable, "chatActionType"))
    if "chatActionType" in unusable:
        found.append(_warning("chatActionType", "unknown_action_type", CHAT_FALLBACKS["chatActionType"]))
    to_member = config.chat_action_type == "dm"
    field, target = ("chatUserId" if to_member else "chatChannelId"), target_of(config)
    if not target:
        message = MISSING_PERSON if to_member else MISSING_CHANNEL
        found.append(ConfigProblem(path=(field,), code="missing_target", message=message))
    elif target.startswith(("#", "@")):
        message = "This looks like a name, and the id is needed: choose from the list, or copy the id."
        found.append(_warning(field, "not_an_id", message))
    found += _texts(field, "token_not_substituted", [*known_tokens(target), *unknown_tokens(target)])
    text = config.chat_message_text
    if not chat_message(text, variables):
        found.append(ConfigProblem(path=("chatMessageText",), code="empty_message", message=EMPTY_MESSAGE))
    elif is_chat_message_cut(text, variables):
        message = f"The message is cut at {CHAT_MESSAGE_LENGTH} characters."
        found.append(_warning("chatMessageText", "text_cut", message))
    found += _texts("chatMessageText", "unknown_token", unknown_tokens(text))
    return bounded(found)


def bounded(problems: Sequence[ConfigProblem]) -> Sequence[ConfigProblem]:
    """Leaves out what is too much to read; warnings first."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    errors = [each for each in problems if each.severity == "error"]
    others = [each for each in problems if each.severity != "error"]
    return tuple([*errors, *others][:MOST_PROBLEMS])


def _wrong_types(
    fallbacks: Mapping[str, str], unusable: frozenset[str], *apart: str
) -> Iterator[ConfigProblem]:
    for field, message in fallbacks.items():
        if field in unusable and field not in apart:
            yield _warning(field, "wrong_type", message)


def _method(config: WebhookConfig) -> Iterator[ConfigProblem]:
    name = method_name(config.webhook_method)
    if name is None:
        message = "This is not the name of an HTTP method that can be sent: POST is used."
        yield _warning("webhookMethod", "invalid_method", message)
    elif name not in USUAL_METHODS:
        message = f"{name} is not one of the usual methods. Check that the receiver takes it."
        yield _warning("webhookMethod", "unusual_method", message)


def _body(
    config: WebhookConfig, unusable: frozenset[str], variables: Variables, limit: int
) -> Iterator[ConfigProblem]:
    text = without_surrogates(config.webhook_body or "")
    if not has_body(config):
        if text.strip() or "webhookBody" in unusable:
            name = method_name(config.webhook_method)
            yield _warning("webhookBody", "body_dropped", f"{name} is sent without a body.")
        return
    fault = json_fault(text) if text.strip() and len(text) <= limit else None
    try:
        render_body(config, variables, unusable, limit)
    except BodyInvalid as exc:
        yield _problem("webhookBody", "invalid_body", fault or Fault(str(exc)), "error")
    except TooLarge as exc:
        yield _problem("webhookBody", exc.reason, Fault(str(exc)), "error")
        return
    else:
        if fault is not None:
            yield _problem("webhookBody", "invalid_body", fault, "error")
        else:
            yield from _room(config, unusable, limit)
    at_fault = None if fault is None else (fault.line, fault.column)
    unknown = (each for each in unknown_tokens(text) if (each.line, each.column) != at_fault)
    yield from _texts("webhookBody", "unknown_token", unknown)
    if fault is None and text.strip():
        yield from _texts("webhookBody", "token_not_substituted", tokens_in_keys(text))


def _room(config: WebhookConfig, unusable: frozenset[str], limit: int) -> Iterator[ConfigProblem]:
    if "{{" not in (config.webhook_body or ""):
        return
    try:
        render_body(config, LONG, unusable, limit)
    except TooLarge:
        message = f"With long values, the body is larger than {limit} bytes, and nothing is sent then."
        yield _warning("webhookBody", "body_may_be_too_large", message)


def _headers(items: object, config: WebhookConfig, variables: Variables) -> Iterator[ConfigProblem]:
    if not isinstance(items, list | tuple):
        return
    too_large = False
    for index, item in enumerate(items):
        field = read_item(HeaderField, item)
        if field is None:
            at = _part_of_wrong_type(item)
            message = (
                "This is not text, so the header is left out." if at else "This is no header, and is left out."
            )
            yield ConfigProblem(
                path=("webhookHeaders", index, *at), code="wrong_type", message=message, severity="warning"
            )
            continue
        for problem in _header(index, field, variables):
            too_large |= problem.severity == "error"
            yield problem
    try:
        delivery_headers(render_headers(config, variables), event_id="", event_type="", has_body=False)
    except HeadersTooLarge as exc:
        if not too_large:
            yield _problem("webhookHeaders", exc.reason, Fault(str(exc)), "error")


def _header(index: int, field: HeaderField, variables: Variables) -> Iterator[ConfigProblem]:
    def problem(part: str, code: str, fault: Fault, severity: Severity = "warning") -> ConfigProblem:
        return ConfigProblem(
            path=("webhookHeaders", index, part),
            code=code,
            message=fault.message,
            severity=severity,
            line=fault.line,
            column=fault.column,
        )

    name = field.key.strip()
    if not name:
        if field.value.strip():
            yield problem("key", "header_dropped", Fault("A header without a name is left out."))
        return
    try:
        header = render_header(field, variables)
        assert header is not None  # noqa: S101  it has a name
        headers, dropped = delivery_headers([header], event_id="", event_type="", has_body=False)
    except HeadersTooLarge as exc:
        yield problem("value", exc.reason, Fault(str(exc)), "error")
        return
    if dropped:
        yield problem("key", "header_dropped", Fault(_why_dropped(name)))
        return
    if headers[-1][1] != header.value.strip():
        message = "Line breaks and other control characters are sent as spaces."
        yield problem("value", "control_characters", Fault(message))
    for fault in islice(unknown_tokens(field.value), MOST_TOKENS):
        yield problem("value", "unknown_token", fault)


def _why_dropped(name: str) -> str:
    shown = without_surrogates(name[:NAME_LENGTH])
    if len(name) > MAX_HEADER_NAME_BYTES:
        return f"The name is longer than {MAX_HEADER_NAME_BYTES} bytes, so the header is left out."
    if not sendable_headers([(name, "")], ""):
        return (
            f"{shown} is not the name of a header: it is left out. A name has no spaces, colons or variables."
        )
    return f"{shown} is set by the service: this header is left out."


def _part_of_wrong_type(item: object) -> tuple[str, ...]:
    if isinstance(item, Mapping):
        for part in ("key", "value"):
            if not isinstance(item.get(part, ""), str):
                return (part,)
    return ()


def _texts(field: str, code: str, faults: Iterable[Fault]) -> Iterator[ConfigProblem]:
    for fault in islice(faults, MOST_TOKENS):
        yield _problem(field, code, fault, "warning")


def _problem(field: str, code: str, fault: Fault, severity: Severity) -> ConfigProblem:
    return ConfigProblem(
        path=(field,),
        code=code,
        message=fault.message,
        severity=severity,
        line=fault.line,
        column=fault.column,
    )


def _warning(field: str, code: str, message: str) -> ConfigProblem:
    return _problem(field, code, Fault(message), "warning")
