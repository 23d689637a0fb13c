"""What is wrong with a config of our two types: pure rules, by the functions that run the node.

A problem of severity ``error`` keeps the node from running when it is reached, and nothing else does, as far as the
config says. Its code is the reason of the node's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from flowactions_hookspecs import ConfigProblem
from flowactions_plugin.errors import BodyInvalid, TooLarge
from flowactions_plugin.nodes.chat_message import (
    EMPTY_MESSAGE,
    MISSING_CHANNEL,
    MISSING_PERSON,
    ChatMessageConfig,
    target_of,
)
from flowactions_plugin.nodes.config import read_config
from flowactions_plugin.nodes.header_checks import MOST_TOKENS, Severity, header_problems
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
    malformed_tokens,
    tokens_in_keys,
    unknown_tokens,
)
from flowactions_plugin.nodes.webhook import (
    SECRET_FIELD,
    WebhookConfig,
    has_body,
    render_body,
)
from flowactions_plugin.queue.rules import method_name

SAMPLE: Final = Variables("x", "x")
"""Values for a check without a walk: short, and not empty."""

LONG: Final = Variables("x" * 255, "x" * CHAT_MESSAGE_LENGTH)
"""Values as long as an end user may well write."""

MOST_PROBLEMS: Final = 100
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
    stored: Mapping[str, Any], limit: int, variables: Variables = SAMPLE, *, standard_webhooks: bool = False
) -> Sequence[ConfigProblem]:
    """Find what is wrong with a webhook's config, except where its URL leads (§2.4).

    Args:
        stored: the config as the author has it.
        limit: bytes of a body at the most.
        variables: the values.
        standard_webhooks: whether the names of that scheme's headers are reserved, too.
    """
    config, unusable = read_config(WebhookConfig, stored)
    found: list[ConfigProblem] = []
    found += _wrong_types(WEBHOOK_FALLBACKS, unusable)
    url = config.webhook_url
    found += _texts("webhookUrl", "token_not_substituted", [*known_tokens(url), *unknown_tokens(url)])
    found += _method(config)
    found += header_problems(stored.get("webhookHeaders"), config, variables, standard_webhooks)
    found += _body(config, unusable, variables, limit)
    found += _secret(config)
    return bounded(found)


def chat_problems(stored: Mapping[str, Any], variables: Variables = SAMPLE) -> Sequence[ConfigProblem]:
    """Find what is wrong with a chat message's config, except what only the provider knows (§2.1).

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
    found += _texts("chatMessageText", "malformed_token", malformed_tokens(text))
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
        yield from _texts("webhookBody", "malformed_token", malformed_tokens(text))
        yield from _texts("webhookBody", "token_not_substituted", tokens_in_keys(text))


def _room(config: WebhookConfig, unusable: frozenset[str], limit: int) -> Iterator[ConfigProblem]:
    if "{{" not in (config.webhook_body or ""):
        return
    try:
        render_body(config, LONG, unusable, limit)
    except TooLarge:
        message = f"With long values, the body is larger than {limit} bytes, and nothing is sent then."
        yield _warning("webhookBody", "body_may_be_too_large", message)


def _secret(config: WebhookConfig) -> Iterator[ConfigProblem]:
    secret = config.webhook_secret or ""
    if secret != secret.strip():
        message = (
            "The secret begins or ends with a space or line break, which counts: the receiver needs the same."
        )
        yield _warning(SECRET_FIELD, "secret_has_spaces", message)


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
