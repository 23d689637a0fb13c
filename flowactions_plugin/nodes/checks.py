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
from flowactions_plugin.nodes.chat_message import EMPTY_MESSAGE, ChatMessageConfig
from flowactions_plugin.nodes.config import read_config, read_item
from flowactions_plugin.nodes.plausibility import (
    invisible,
    secret_problems,
    token_in_header,
    token_in_url,
    wrong_id,
)
from flowactions_plugin.nodes.template import (
    CHAT_MESSAGE_LENGTH,
    Variables,
    chat_message,
    is_chat_message_cut,
    without_surrogates,
)
from flowactions_plugin.nodes.template_check import (
    Fault,
    fault,
    json_fault,
    repeated_keys,
    tokens_in_keys,
    tokens_not_substituted,
    unknown_tokens,
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
MOST_TOKENS: Final = 20
"""Problems of one kind in one text."""

NAME_LENGTH: Final = 80
METHODS_WITH_A_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
"""They are hardly meant to be sent without one."""


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
    found = list(_wrong_types(unusable - {"webhookBody"}))
    found += _url(config.webhook_url)
    if method_name(config.webhook_method) is None:
        message = "This is not the name of an HTTP method that can be sent: POST is used."
        found.append(_problem("invalid_method", message, "webhookMethod"))
    found += _headers(stored.get("webhookHeaders"), config, variables, standard_webhooks)
    found += _body(config, unusable, variables, limit)
    secret = config.webhook_secret or ""
    found += [_problem(code, message, SECRET_FIELD) for code, message in secret_problems(secret)]
    found += _not_substituted(secret, SECRET_FIELD)
    return bounded(found)


def chat_problems(stored: Mapping[str, Any], variables: Variables = SAMPLE) -> Sequence[ConfigProblem]:
    """Find what is wrong with a chat message's config, except what only the provider knows (§2.1)."""
    config, unusable = read_config(ChatMessageConfig, stored)
    found = list(_wrong_types(unusable - {"chatActionType"}))
    if "chatActionType" in unusable:
        message = "Only dm and channel are known: it is sent to the channel."
        found.append(_problem("unknown_action_type", message, "chatActionType"))
    field, target = config.target_field, config.target
    if not target:
        found.append(_problem("missing_target", config.missing_target, field, severity="error"))
    elif wrong := wrong_id(target, to_member=config.to_member):
        found.append(_problem("not_an_id", wrong, field))
    found += _not_substituted(target, field)
    text = config.chat_message_text
    if not chat_message(text, variables):
        found.append(_problem("empty_message", EMPTY_MESSAGE, "chatMessageText", severity="error"))
    elif is_chat_message_cut(text, variables):
        message = f"The message is cut at {CHAT_MESSAGE_LENGTH} characters."
        found.append(_problem("text_cut", message, "chatMessageText"))
    found += _texts("unknown_token", unknown_tokens(text), "chatMessageText")
    return bounded(found)


def url_problem(
    authored: str, code: str, message: str, offset: int | None, severity: Literal["error", "warning"] = "error"
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
    said = message if offset is None else fault(authored, message, blanks + offset)
    return _problem(code, said, "webhookUrl", severity=severity)


def bounded(problems: Sequence[ConfigProblem]) -> Sequence[ConfigProblem]:
    """Leave out what is too much to read; warnings first."""
    if len(problems) <= MOST_PROBLEMS:
        return tuple(problems)
    errors = [each for each in problems if each.severity == "error"]
    others = [each for each in problems if each.severity != "error"]
    return tuple([*errors, *others][:MOST_PROBLEMS])


def _wrong_types(fields: Iterable[str]) -> Iterator[ConfigProblem]:
    for field in sorted(fields):
        yield _problem("wrong_type", "This value has the wrong type, and counts as not set.", field)


def _url(url: str) -> Iterator[ConfigProblem]:
    yield from _not_substituted(url, "webhookUrl")
    if "#" in url:
        message = "The part from # on is not sent. Remove it, or write %23 if the receiver needs a #."
        yield _problem("fragment_dropped", fault(url, message, url.index("#")), "webhookUrl")
    if unseen := invisible(url):
        yield _problem("invisible_character", fault(url, *unseen), "webhookUrl")
    if token := token_in_url(url):
        yield _problem("token_in_clear", fault(url, *token), "webhookUrl")


def _headers(
    items: object, config: WebhookConfig, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
    """Find what is wrong with custom headers, each by its index in the author's list."""
    if not isinstance(items, list | tuple):
        return
    too_large = False
    names: set[str] = set()
    for index, item in enumerate(items):
        at = ("webhookHeaders", index)
        field = read_item(HeaderField, item)
        if field is None:
            yield _problem("wrong_type", "This is not text, so the header is left out.", *at)
            continue
        for problem in _header(at, field, variables, standard_webhooks):
            too_large |= problem.severity == "error"
            yield problem
        name = folded(field.key)
        if name in names:
            yield _problem("header_repeated", "This header is listed twice. Remove one.", *at, "key")
        elif name:
            names.add(name)
    try:
        _sent_headers(render_headers(config, variables), standard_webhooks)
    except HeadersTooLarge as exc:
        if not too_large:
            yield _problem(exc.reason, str(exc), "webhookHeaders", severity="error")


def _header(
    at: tuple[str, int], field: HeaderField, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
    name = field.key.strip()
    if not name:
        if field.value.strip():
            yield _problem("header_dropped", "A header without a name is left out.", *at, "key")
        return
    try:
        header = render_header(field, variables)
        assert header is not None  # noqa: S101  it has a name
        headers, dropped = _sent_headers([header], standard_webhooks)
    except HeadersTooLarge as exc:
        yield _problem(exc.reason, str(exc), *at, "value", severity="error")
        return
    if dropped:
        unseen = invisible(field.key)
        said = fault(field.key, *unseen) if unseen else _why_dropped(name)
        yield _problem("header_dropped", said, *at, "key")
        return
    if headers[-1][1] != header.value.strip():
        message = "Line breaks and other control characters are sent as spaces."
        yield _problem("control_characters", message, *at, "value")
    elif unseen := invisible(field.value):
        yield _problem("invisible_character", fault(field.value, *unseen), *at, "value")
    if token := token_in_header(name, field.value):
        yield _problem("token_in_clear", fault(field.value, *token), *at, "value")
    yield from _texts("unknown_token", unknown_tokens(field.value), *at, "value")


def _sent_headers(
    headers: Iterable[Header], standard_webhooks: bool
) -> tuple[Sequence[tuple[str, str]], Sequence[str]]:
    return delivery_headers(
        headers, event_id="", event_type="", has_body=False, standard_webhooks=standard_webhooks
    )


def _why_dropped(name: str) -> str:
    shown = without_surrogates(name[:NAME_LENGTH])
    if len(name) <= MAX_HEADER_NAME_BYTES and sendable_headers([(name, "")], ""):
        return f"We set {shown}. Your value is ignored."
    return (
        f"{shown} is not the name of a header, so the header is left out. A name has letters from A to Z, digits and hyphens,"
        f" at most {MAX_HEADER_NAME_BYTES}, and no spaces, colons, quotes or variables."
    )


def _body(
    config: WebhookConfig, unusable: frozenset[str], variables: Variables, limit: int
) -> Iterator[ConfigProblem]:
    text = without_surrogates(config.webhook_body or "")
    if not has_body(config):
        if text.strip() or "webhookBody" in unusable:
            name = method_name(config.webhook_method)
            yield _problem("body_dropped", f"{name} is sent without a body.", "webhookBody")
        return
    if not text.strip() and "webhookBody" not in unusable:
        if (method_name(config.webhook_method) or "POST") in METHODS_WITH_A_BODY:
            message = "The body is empty, so the request is sent without one. A grey text in this field is an example."
            yield _problem("empty_body", message, "webhookBody")
        return
    wrong = json_fault(text) if text.strip() and len(text) <= limit else None
    invalid: Fault | str | None = wrong
    try:
        render_body(config, variables, unusable, limit)
    except BodyInvalid as exc:
        invalid = wrong or str(exc)
    except TooLarge as exc:
        yield _problem(exc.reason, str(exc), "webhookBody", severity="error")
        return
    # What is not a variable is told first: it may well be why the body is not JSON.
    at = None if wrong is None else wrong[1:]
    unknown = (each for each in unknown_tokens(text) if each[1:] != at)
    yield from _texts("unknown_token", unknown, "webhookBody")
    if invalid is not None:
        yield _problem("invalid_body", invalid, "webhookBody", severity="error")
        return
    yield from _texts("token_not_substituted", tokens_in_keys(text), "webhookBody")
    yield from _texts("duplicate_key", repeated_keys(text), "webhookBody")
    yield from _room(config, unusable, limit)


def _room(config: WebhookConfig, unusable: frozenset[str], limit: int) -> Iterator[ConfigProblem]:
    if "{{" not in (config.webhook_body or ""):
        return
    try:
        render_body(config, LONG, unusable, limit)
    except TooLarge:
        message = f"With long values, the body is larger than {size(limit)}, and nothing is sent then."
        yield _problem("body_may_be_too_large", message, "webhookBody")


def _not_substituted(text: str, field: str) -> Iterator[ConfigProblem]:
    return _texts("token_not_substituted", tokens_not_substituted(text), field)


def _texts(code: str, faults: Iterable[Fault], *path: str | int) -> Iterator[ConfigProblem]:
    for each in islice(faults, MOST_TOKENS):
        yield _problem(code, each, *path)


def _problem(
    code: str, said: Fault | str, *path: str | int, severity: Literal["error", "warning"] = "warning"
) -> ConfigProblem:
    message, line, column = Fault(said) if isinstance(said, str) else said
    return ConfigProblem(path=path, code=code, message=message, severity=severity, line=line, column=column)
