"""What is wrong with a config of our two types: pure rules, by the functions that run the node.

A problem of severity ``error`` keeps the node from running when it is reached, and nothing else does, as far as the
config says. Its code is the reason of the node's result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal

from flowactions_hookspecs import ConfigProblem, Header
from flowactions_plugin.egress.signature import folded
from flowactions_plugin.errors import BodyInvalid, HeadersTooLarge, TooLarge
from flowactions_plugin.log_text import size
from flowactions_plugin.nodes import faults
from flowactions_plugin.nodes.chat_message import EMPTY_MESSAGE, ChatMessageConfig
from flowactions_plugin.nodes.config import read_config, read_item
from flowactions_plugin.nodes.faults import Fault
from flowactions_plugin.nodes.template import (
    CHAT_MESSAGE_LENGTH,
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
    render_header,
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

LONG: Final = {"userId": "x" * 255, "content": "x" * CHAT_MESSAGE_LENGTH}
"""Values as long as an end user may well write."""

MOST_PROBLEMS: Final = 100

Severity = Literal["error", "warning"]


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
    found = list(_wrong_types(unusable - {"webhookBody"}))
    for rule in (faults.tokens_not_substituted, faults.fragment, faults.invisible, faults.token_in_url):
        found += _problems(rule(url), "webhookUrl")
    if method_name(config.webhook_method) is None:
        message = "This is not the name of an HTTP method that can be sent: POST is used."
        found.append(_problem(Fault("invalid_method", message), "webhookMethod"))
    found += _headers(stored.get("webhookHeaders"), config, variables, standard_webhooks)
    found += _body(config, unusable, variables, limit)
    found += _problems(faults.faults_of_secret(secret), SECRET_FIELD)
    found += _problems(faults.tokens_not_substituted(secret), SECRET_FIELD)
    return bounded(found)


def chat_problems(stored: Mapping[str, Any], variables: Variables = SAMPLE) -> Sequence[ConfigProblem]:
    """Find what is wrong with a chat message's config, except what only the provider knows (§2.1)."""
    config, unusable = read_config(ChatMessageConfig, stored)
    found = list(_wrong_types(unusable - {"chatActionType"}))
    if "chatActionType" in unusable:
        message = "Only dm and channel are known: it is sent to the channel."
        found.append(_problem(Fault("unknown_action_type", message), "chatActionType"))
    field, target, text = config.target_field, config.target, config.chat_message_text
    if target:
        found += _problems(faults.wrong_id(target, to_member=config.to_member), field)
        found += _problems(faults.tokens_not_substituted(target), field)
    else:
        found.append(_error("missing_target", config.missing_target, field))
    if not chat_message(text, variables):
        found.append(_error("empty_message", EMPTY_MESSAGE, "chatMessageText"))
    elif is_chat_message_cut(text, variables):
        message = f"The message is cut at {CHAT_MESSAGE_LENGTH} characters."
        found.append(_problem(Fault("text_cut", message), "chatMessageText"))
    found += _problems(faults.unknown_tokens(text), "chatMessageText")
    found += _problems(faults.other_markup(text), "chatMessageText")
    return bounded(found)


def url_problem(
    authored: str, code: str, message: str, offset: int | None, severity: Severity = "error"
) -> ConfigProblem:
    """Return a problem of a webhook's URL.

    Args:
        authored: the URL as its author has it.
        code: the problem's.
        message: what to tell the author.
        offset: in the URL without the blanks around it; ``None``: the whole.
        severity: the problem's.
    """
    blanks = len(authored) - len(authored.lstrip())
    found = Fault(code, message) if offset is None else faults.fault(authored, blanks + offset, code, message)
    return _problem(found, "webhookUrl", severity=severity)


def bounded(problems: Sequence[ConfigProblem]) -> Sequence[ConfigProblem]:
    """Leave out what is too much to read; warnings first."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    return tuple(sorted(problems, key=lambda each: each.severity != "error")[:MOST_PROBLEMS])


def _wrong_types(fields: Iterable[str]) -> Iterator[ConfigProblem]:
    """Find the fields that have the wrong type."""
    for field in sorted(fields):
        yield _problem(Fault("wrong_type", "This value has the wrong type, and counts as not set."), field)


def _headers(
    items: object, config: WebhookConfig, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
    """Find what is wrong with custom headers, each by its index in the author's list."""
    too_large = False
    names: set[str] = set()
    for index, item in enumerate(items if isinstance(items, list | tuple) else ()):
        at = ("webhookHeaders", index)
        field = read_item(HeaderField, item)
        if field is None:
            yield _problem(Fault("wrong_type", "This is not text, so the header is left out."), *at)
            continue
        for problem in _header(at, field, variables, standard_webhooks):
            too_large |= problem.severity == "error"
            yield problem
        name = folded(field.key)
        if name in names:
            message = "This header is listed twice. Remove one."
            yield _problem(Fault("header_repeated", message), *at, "key")
        elif name:
            names.add(name)
    try:
        _sent_headers(render_headers(config, variables), standard_webhooks)
    except HeadersTooLarge as exc:
        if not too_large:
            yield _error(exc.reason, str(exc), "webhookHeaders")


def _header(
    at: tuple[str, int], field: HeaderField, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
    """Find what is wrong with one header."""
    name = field.key.strip()
    if not name:
        if field.value.strip():
            yield _problem(Fault("header_dropped", "A header without a name is left out."), *at, "key")
        return
    try:
        header = render_header(field, variables)
        assert header is not None  # noqa: S101  it has a name
        headers, dropped = _sent_headers([header], standard_webhooks)
    except HeadersTooLarge as exc:
        yield _error(exc.reason, str(exc), *at, "value")
        return
    if dropped:
        why = next(faults.invisible(field.key, "header_dropped"), Fault("header_dropped", _why_dropped(name)))
        yield _problem(why, *at, "key")
        return
    if headers[-1][1] != header.value.strip():
        message = "Line breaks and other control characters are sent as spaces."
        yield _problem(Fault("control_characters", message), *at, "value")
    else:
        yield from _problems(faults.invisible(field.value), *at, "value")
    yield from _problems(faults.token_in_header(name, field.value), *at, "value")
    yield from _problems(faults.unknown_tokens(field.value), *at, "value")


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
            yield _problem(Fault("body_dropped", f"{method} is sent without a body."), "webhookBody")
        return
    if not is_there and "webhookBody" not in unusable:
        if method in {None, "POST", "PUT", "PATCH"}:  # hardly meant to be sent without one
            message = "The body is empty, so the request is sent without one. A grey text in this field is an example."
            yield _problem(Fault("empty_body", message), "webhookBody")
        return
    invalid = wrong = faults.json_fault(text) if is_there and len(text) <= limit else None
    try:
        render_body(config, variables, unusable, limit)
    except BodyInvalid as exc:
        invalid = wrong or Fault("invalid_body", str(exc))
    except TooLarge as exc:
        yield _error(exc.reason, str(exc), "webhookBody")
        return
    # What is not a variable is told first: it may well be why the body is not JSON.
    unknown = (each for each in faults.unknown_tokens(text) if wrong is None or each[2:] != wrong[2:])
    yield from _problems(unknown, "webhookBody")
    if invalid is not None:
        yield _problem(invalid, "webhookBody", severity="error")
        return
    yield from _problems(faults.tokens_in_keys(text), "webhookBody")
    yield from _problems(faults.repeated_keys(text), "webhookBody")
    if "{{" not in text:
        return
    try:
        render_body(config, LONG, unusable, limit)
    except TooLarge:
        message = f"With long values, the body is larger than {size(limit)}, and nothing is sent then."
        yield _problem(Fault("body_may_be_too_large", message), "webhookBody")


def _problems(found: Iterable[Fault], *path: str | int) -> Iterator[ConfigProblem]:
    """Make warnings of faults, of one rule a few."""
    return (_problem(each, *path) for each in islice(found, 20))


def _problem(found: Fault, *path: str | int, severity: Severity = "warning") -> ConfigProblem:
    """Make a problem of a fault at a field."""
    code, message, line, column = found
    return ConfigProblem(path=path, code=code, message=message, severity=severity, line=line, column=column)


def _error(code: str, message: str, *path: str | int) -> ConfigProblem:
    """Make a problem that keeps the node from running."""
    return _problem(Fault(code, message), *path, severity="error")
