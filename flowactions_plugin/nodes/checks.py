"""What is wrong with a config of our two types: pure rules, by the functions that run the node.

A problem of severity ``error`` keeps the node from running when it is reached, and nothing else does, as far as the
config says. Its code is the reason of the node's result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from flowactions_hookspecs import ConfigProblem, Header
from flowactions_plugin.egress.signature import folded
from flowactions_plugin.errors import BodyInvalid, HeadersTooLarge, TooLarge
from flowactions_plugin.nodes import faults
from flowactions_plugin.nodes.chat_message import EMPTY_MESSAGE, MESSAGE_CUT, ChatMessageConfig
from flowactions_plugin.nodes.config import read_config, read_item
from flowactions_plugin.nodes.faults import warning
from flowactions_plugin.nodes.template import (
    Variables,
    chat_message,
    is_chat_message_cut,
    without_surrogates,
)
from flowactions_plugin.nodes.webhook import (
    SECRET_FIELD,
    HeaderField,
    WebhookConfig,
    has_body,
    render_body,
    render_headers,
)
from flowactions_plugin.queue.rules import (
    MAX_HEADER_NAME_BYTES,
    delivery_headers,
    method_name,
    sendable_headers,
)

SAMPLE: Final = {"userId": "x", "content": "x"}
"""Values for a check without a walk: short, and not empty."""

MOST_PROBLEMS: Final = 100

_NOT_JSON: Final = re.compile(
    r"^\s*(?:application/(?:x-www-form-urlencoded|xml)|multipart/|text/xml)", re.IGNORECASE
)
"""Media types of forms and of XML."""


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
    url, secret = config.webhook_url, config.webhook_secret or ""
    found = [*_wrong_types(unusable - {"webhookBody"})]
    for rule in (faults.tokens_not_substituted, faults.fragment, faults.invisible, faults.token_in_url):
        found += at("webhookUrl", rule(url))
    if method_name(config.webhook_method) is None:
        message = "This is not the name of an HTTP method that can be sent: POST is used."
        found.append(warning("invalid_method", message, "webhookMethod"))
    found += at("webhookHeaders", _headers(stored.get("webhookHeaders"), config, variables, standard_webhooks))
    found += at("webhookBody", _body(config, unusable, variables, limit))
    found += at(SECRET_FIELD, faults.faults_of_secret(secret))
    found += at(SECRET_FIELD, faults.tokens_not_substituted(secret))
    return bounded(found)


def chat_problems(stored: Mapping[str, Any], variables: Variables = SAMPLE) -> Sequence[ConfigProblem]:
    """Find what is wrong with a chat message's config, except what only the provider knows (§2.1)."""
    config, unusable = read_config(ChatMessageConfig, stored)
    found = [*_wrong_types(unusable - {"chatActionType"})]
    if "chatActionType" in unusable:
        message = "Only dm and channel are known: it is sent to the channel."
        found.append(warning("unknown_action_type", message, "chatActionType"))
    field, target, text = config.target_field, config.target, config.chat_message_text
    if target:
        found += at(field, faults.wrong_id(target, to_member=config.to_member))
        found += at(field, faults.tokens_not_substituted(target))
    else:
        found.append(ConfigProblem(path=(field,), code="missing_target", message=config.missing_target))
    if not chat_message(text, variables):
        found.append(ConfigProblem(path=("chatMessageText",), code="empty_message", message=EMPTY_MESSAGE))
    elif is_chat_message_cut(text, variables):
        found.append(warning("text_cut", MESSAGE_CUT, "chatMessageText"))
    found += at("chatMessageText", faults.unknown_tokens(text))
    found += at("chatMessageText", faults.other_markup(text))
    return bounded(found)


def at(place: str | int, found: Iterable[ConfigProblem]) -> Iterator[ConfigProblem]:
    """Put a field's name or an item's index before the paths of problems."""
    return (replace(each, path=(place, *each.path)) for each in found)


def bounded(problems: Sequence[ConfigProblem]) -> Sequence[ConfigProblem]:
    """Leave out what is too much to read; warnings first."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    return tuple(sorted(problems, key=lambda each: each.severity != "error")[:MOST_PROBLEMS])


def _wrong_types(fields: Iterable[str]) -> Iterator[ConfigProblem]:
    """Find the fields that have the wrong type."""
    for field in sorted(fields):
        yield warning("wrong_type", "This value has the wrong type, and counts as not set.", field)


def _headers(
    items: object, config: WebhookConfig, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
    """Find what is wrong with custom headers, each by its index in the author's list."""
    too_large = False
    names: set[str] = set()
    for index, item in enumerate(items if isinstance(items, list | tuple) else ()):
        field = read_item(HeaderField, item)
        if field is None:
            yield warning("wrong_type", "This is not text, so the header is left out.", index)
            continue
        for problem in at(index, _header(field, variables, standard_webhooks)):
            too_large |= problem.severity == "error"
            yield problem
        name = folded(field.key)
        if name == "content-type" and _NOT_JSON.search(field.value) and has_body(config):
            message = "The body is JSON, and not what this header says. Remove this header."
            yield warning("not_json", message, index, "value")
        if name in names:
            yield warning("header_repeated", "This header is listed twice. Remove one.", index, "key")
        elif name:
            names.add(name)
    try:
        _sent_headers(render_headers(config.webhook_headers, variables), standard_webhooks)
    except HeadersTooLarge as exc:
        if not too_large:
            yield ConfigProblem(code=exc.reason, message=str(exc))


def _header(field: HeaderField, variables: Variables, standard_webhooks: bool) -> Iterator[ConfigProblem]:
    """Find what is wrong with one header."""
    name = field.key.strip()
    if not name:
        if field.value.strip():
            yield warning("header_dropped", "A header without a name is left out.", "key")
        return
    try:
        rendered = render_headers([field], variables)
        headers, dropped = _sent_headers(rendered, standard_webhooks)
    except HeadersTooLarge as exc:
        yield ConfigProblem(path=("value",), code=exc.reason, message=str(exc))
        return
    if dropped:
        why = warning("header_dropped", _why_dropped(name))
        yield from at("key", [next(faults.invisible(field.key, "header_dropped"), why)])
        return
    if headers[-1][1] != rendered[-1].value.strip():
        message = "Line breaks and other control characters are sent as spaces."
        yield warning("control_characters", message, "value")
    else:
        yield from at("value", faults.invisible(field.value))
    yield from at("value", faults.token_in_header(name, field.value))
    yield from at("value", faults.unknown_tokens(field.value))


def _sent_headers(
    headers: Iterable[Header], standard_webhooks: bool
) -> tuple[Sequence[tuple[str, str]], Sequence[str]]:
    """Return the headers that are sent, and the names of those that are not."""
    return delivery_headers(
        headers, event_id="", event_type="", has_body=False, standard_webhooks=standard_webhooks
    )


def _why_dropped(name: str) -> str:
    """Say why a header is not sent: it is ours, or its name is none."""
    shown = without_surrogates(name[: faults.NAME_LENGTH])
    if len(name) <= MAX_HEADER_NAME_BYTES and sendable_headers([(name, "")], ""):
        return f"We set {shown}. Your value is ignored."
    return (
        f"{shown} is not the name of a header, so the header is left out. A name has letters from A to Z, digits and hyphens,"
        f" at most {MAX_HEADER_NAME_BYTES}, and no spaces, colons, quotes or variables."
    )


def _body(
    config: WebhookConfig, unusable: frozenset[str], variables: Variables, limit: int
) -> Iterator[ConfigProblem]:
    """Find what is wrong with a body."""
    text = without_surrogates(config.webhook_body or "")
    is_there = bool(text.strip())
    method = method_name(config.webhook_method)
    if not has_body(config):
        if is_there or "webhookBody" in unusable:
            yield warning("body_dropped", f"{method} is sent without a body.")
        return
    if not is_there and "webhookBody" not in unusable:
        if method in {None, "POST", "PUT", "PATCH"}:  # hardly meant to be sent without one
            message = "The body is empty, so the request is sent without one. A grey text in this field is an example."
            yield warning("empty_body", message)
        return
    wrong = None
    try:
        render_body(config, variables, unusable, limit)
    except BodyInvalid as exc:
        wrong = ConfigProblem(code="invalid_body", message=str(exc), line=exc.line, column=exc.column)
    except TooLarge as exc:
        yield ConfigProblem(code=exc.reason, message=str(exc))
        return
    # What is not a variable is told first: it may well be why the body is not JSON.
    for unknown in faults.unknown_tokens(text):
        if wrong is None or (unknown.line, unknown.column) != (wrong.line, wrong.column):
            yield unknown
    if wrong is not None:
        yield wrong
        return
    yield from faults.tokens_in_keys(text)
    yield from islice(faults.repeated_keys(text), faults.MOST_OF_A_RULE)
