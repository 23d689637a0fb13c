"""What is wrong with the custom headers of a webhook's config, by the functions that make those of a delivery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, Literal

from flowactions_hookspecs import ConfigProblem
from flowactions_plugin.egress.header_names import folded
from flowactions_plugin.errors import HeadersTooLarge
from flowactions_plugin.nodes.config import read_item
from flowactions_plugin.nodes.template import Variables, without_surrogates
from flowactions_plugin.nodes.template_check import Fault, malformed_tokens, unknown_tokens
from flowactions_plugin.nodes.webhook import HeaderField, WebhookConfig, render_header, render_headers
from flowactions_plugin.queue.rules import MAX_HEADER_NAME_BYTES, delivery_headers, sendable_headers

Severity = Literal["error", "warning"]

MOST_TOKENS: Final = 20
"""Problems of one kind in one text."""

NAME_LENGTH: Final = 80


def header_problems(
    items: object, config: WebhookConfig, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
    """Find what is wrong with custom headers, each by its index in the author's list (§2.4).

    Args:
        items: the list as the author has it; anything else has no headers.
        config: what was read of it.
        variables: the values.
        standard_webhooks: whether the names of that scheme's headers are reserved, too.
    """
    if not isinstance(items, list | tuple):
        return
    too_large = False
    names: set[str] = set()
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
        for problem in _header(index, field, variables, standard_webhooks):
            too_large |= problem.severity == "error"
            yield problem
        name = folded(field.key)
        if name in names:
            message = "This header is there twice: both are sent, and receivers differ in which one they read."
            yield ConfigProblem(
                path=("webhookHeaders", index, "key"),
                code="header_repeated",
                message=message,
                severity="warning",
            )
        elif name:
            names.add(name)
    try:
        delivery_headers(
            render_headers(config, variables),
            event_id="",
            event_type="",
            has_body=False,
            standard_webhooks=standard_webhooks,
        )
    except HeadersTooLarge as exc:
        if not too_large:
            yield ConfigProblem(path=("webhookHeaders",), code=exc.reason, message=str(exc))


def _header(
    index: int, field: HeaderField, variables: Variables, standard_webhooks: bool
) -> Iterator[ConfigProblem]:
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
        headers, dropped = delivery_headers(
            [header], event_id="", event_type="", has_body=False, standard_webhooks=standard_webhooks
        )
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
    for fault in islice(malformed_tokens(field.value), MOST_TOKENS):
        yield problem("value", "malformed_token", fault)


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
