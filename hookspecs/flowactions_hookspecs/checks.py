"""What a host or plugin may give: checked before anything happens, so that both databases answer alike.

Ids end up in keys of tables and in event ids. PostgreSQL stores no NUL, neither database stores a lone surrogate, an
empty step would be the end of the flow, and SQLite would take a number that PostgreSQL refuses.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from flowactions_hookspecs.drafts import NodeDraft
from flowactions_hookspecs.logic import Firing
from flowactions_hookspecs.nodes import Deferred, Eager, Node, Walk
from flowactions_hookspecs.origins import (
    ExperienceTriggerRef,
    FlowNodeOrigin,
    HostOrigin,
    LogicActionOrigin,
    NodeTriggerRef,
    PluginOrigin,
)
from flowactions_hookspecs.webhooks import Header, OutboundWebhook

MAX_ID_LENGTH: Final = 255
"""Characters."""

MAX_ACTION_INDEX: Final = 2**31 - 1

MAX_ATTEMPTS: Final = 10

MAX_KEY_LENGTH: Final = 200
"""Characters of an idempotency key (§8)."""

_METHOD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}", re.ASCII)
"""A token (RFC 9110 §5.6.2), as long as the outbox keeps it."""

RESERVED_EVENTS: Final = "experience."
"""Event types of the specification's own webhooks begin with it (§6.1)."""

_EVENT_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)

RUN_IDS: Final = ("organization_id", "flow_id", "run_id")
WALK_IDS: Final = (*RUN_IDS, "agent_id", "visit")
REF_IDS: Final = ("organization_id", "agent_id", "experience_id")


def id_fault(value: object) -> str | None:
    """Tell what keeps a value from being an id.

    Returns:
        What it must be, to follow its name in an error message; ``None`` for an id.
    """
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if not value:
        return "must not be empty"
    if len(value) > MAX_ID_LENGTH:
        return f"must have at most {MAX_ID_LENGTH} characters, not {len(value)}"
    if "\0" in value:
        return "must not hold a NUL character"
    return text_fault(value)


def text_fault(value: str) -> str | None:
    """Tell what keeps a text from being written as UTF-8; ``None``: nothing."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return "must not hold a lone surrogate, which UTF-8 cannot write"
    return None


def check_id(name: str, value: object) -> None:
    """Check one id.

    Args:
        name: of the argument or field, for the message. The value is not in it.
        value: the id.

    Raises:
        TypeError: it is not text.
        ValueError: it is empty, longer than 255 characters, or holds NUL or a lone surrogate.
    """
    fault = id_fault(value)
    if fault is not None:
        raise (ValueError if isinstance(value, str) else TypeError)(f"{name} {fault}")


def check_run(walk: Walk) -> None:
    """Check those ids of a walk that name its run.

    Raises:
        TypeError: it is not a `Walk`, or an id is not text.
        ValueError: an id cannot be used.
    """
    if not isinstance(walk, Walk):
        raise TypeError(f"walk must be a Walk, not {type(walk).__name__}")
    _check_fields(walk, "walk", RUN_IDS)


def check_walk(walk: Walk) -> None:
    """Check a walk whose node is reached. ``user_id`` and ``content`` may be any text.

    Raises:
        TypeError: it is not a `Walk`, or a field that must be text is not.
        ValueError: an id cannot be used.
    """
    check_run(walk)
    _check_fields(walk, "walk", WALK_IDS)
    for name in ("user_id", "content"):
        value = getattr(walk, name)
        if not isinstance(value, str):
            raise TypeError(f"walk.{name} must be text, not {type(value).__name__}")
    if isinstance(walk.pacing, Deferred):
        check_step("walk.pacing.next_step_id", walk.pacing.next_step_id)
    elif not isinstance(walk.pacing, Eager):
        raise TypeError(f"walk.pacing must be Eager or Deferred, not {type(walk.pacing).__name__}")


def check_step(name: str, step_id: str | None) -> None:
    """Check the id of a content step; ``None`` is the end of the flow.

    Raises:
        TypeError: it is neither text nor ``None``.
        ValueError: it cannot be used. Empty text is not the end of the flow.
    """
    if step_id is not None:
        check_id(name, step_id)


def check_node(node: Node) -> None:
    """Check a node that is reached; its config is the author's and is not looked at.

    Raises:
        TypeError: it is not a `Node`, or its id or type is not text.
        ValueError: its id or type cannot be used.
    """
    if not isinstance(node, Node):
        raise TypeError(f"node must be a Node, not {type(node).__name__}")
    _check_fields(node, "node", ("id", "type"))
    if not isinstance(node.config, Mapping):
        raise TypeError(f"node.config must be a mapping, not {type(node.config).__name__}")


def check_ref(ref: object) -> None:
    """Check what points at a logic action.

    Raises:
        TypeError: something has the wrong type.
        ValueError: an id or the index cannot be used.
    """
    if isinstance(ref, ExperienceTriggerRef):
        _check_fields(ref, "ref", (*REF_IDS, "trigger_row_id"))
    elif isinstance(ref, NodeTriggerRef):
        _check_fields(ref, "ref", (*REF_IDS, "node_id", "node_trigger_group_id"))
        if ref.question_id is not None:
            check_id("ref.question_id", ref.question_id)
    else:
        raise TypeError(f"ref must be an ExperienceTriggerRef or a NodeTriggerRef, not {type(ref).__name__}")
    index: object = ref.action_index
    if not isinstance(index, int) or isinstance(index, bool):
        raise TypeError(f"ref.action_index must be an int, not {type(index).__name__}")
    if not 0 <= index <= MAX_ACTION_INDEX:
        raise ValueError(f"ref.action_index must be within 0 and {MAX_ACTION_INDEX}")


def check_firing(firing: Firing) -> None:
    """Check a logic action's firing.

    Raises:
        TypeError: something has the wrong type.
        ValueError: an id or the index cannot be used, or ``occurred_at`` has no time zone.
    """
    check_ref(firing.ref)
    check_id("firing_id", firing.firing_id)
    if not isinstance(firing.occurred_at, datetime):
        raise TypeError(f"occurred_at must be a datetime, not {type(firing.occurred_at).__name__}")
    if firing.occurred_at.utcoffset() is None:
        raise ValueError("occurred_at must have a time zone")
    try:
        firing.occurred_at.astimezone(UTC)
    except OverflowError:
        raise ValueError("occurred_at is out of range") from None


def check_draft(draft: NodeDraft, walk: Walk | None = None) -> None:
    """Check a draft, and the walk that its preview or test is made with.

    Raises:
        TypeError: something has the wrong type.
        ValueError: an id cannot be used, or draft and walk are of two organizations.
    """
    if not isinstance(draft, NodeDraft):
        raise TypeError(f"draft must be a NodeDraft, not {type(draft).__name__}")
    _check_fields(draft, "draft", ("organization_id", "agent_id"))
    check_node(draft.node)
    if walk is not None:
        check_walk(walk)
        if walk.organization_id != draft.organization_id:
            raise ValueError("walk.organization_id must be that of the draft")


def check_webhook(
    webhook: OutboundWebhook,
    caller: str,
    plugin_origins: Collection[tuple[str, str]] = (),
    *,
    host_signs: bool = True,
) -> None:
    """Check a webhook of a host's or plugin's own.

    Args:
        webhook: the webhook.
        caller: ``host`` or ``plugin:<name>``.
        plugin_origins: plugins and the names of their origins, as their hooks declare them. A plugin that declares none
            sends unsigned.
        host_signs: whether the host overrides `Host.signing_secret`, whose default knows no `HostOrigin`.

    Raises:
        TypeError: something has the wrong type.
        ValueError: something cannot be used; the message names it.
    """
    if not isinstance(webhook, OutboundWebhook):
        raise TypeError(f"webhook must be an OutboundWebhook, not {type(webhook).__name__}")
    _check_fields(webhook, "webhook", ("organization_id",))
    if webhook.agent_id is not None:
        check_id("webhook.agent_id", webhook.agent_id)
    _check_key(webhook.idempotency_key)
    _check_event_type(webhook.event_type)
    _check_request(webhook)
    _check_headers(webhook.headers)
    _check_attempts(webhook.max_attempts)
    _check_origin(webhook, caller, plugin_origins, host_signs=host_signs)


def _check_attempts(attempts: object) -> None:
    if attempts is None:
        return
    if not isinstance(attempts, int) or isinstance(attempts, bool):
        raise TypeError(f"webhook.max_attempts must be an int or None, not {type(attempts).__name__}")
    if not 1 <= attempts <= MAX_ATTEMPTS:
        raise ValueError(f"webhook.max_attempts must be within 1 and {MAX_ATTEMPTS}")


def _check_key(key: str | None) -> None:
    if key is None:
        return
    check_id("webhook.idempotency_key", key)
    if len(key) > MAX_KEY_LENGTH:
        raise ValueError(
            f"webhook.idempotency_key must have at most {MAX_KEY_LENGTH} characters, not {len(key)}"
        )


def _check_request(webhook: OutboundWebhook) -> None:
    for name in ("entity", "url", "method"):
        value = getattr(webhook, name)
        if not isinstance(value, str):
            raise TypeError(f"webhook.{name} must be text, not {type(value).__name__}")
        fault = "must not be empty" if name == "entity" and not value else text_fault(value)
        if fault is not None:
            raise ValueError(f"webhook.{name} {fault}")
    if _METHOD.fullmatch(webhook.method) is None or webhook.method.upper() == "CONNECT":
        raise ValueError("webhook.method must be the name of an HTTP method, such as POST")
    body: object = webhook.body
    if body is not None and not isinstance(body, bytes):
        raise TypeError(f"webhook.body must be bytes, not {type(body).__name__}")


def _check_event_type(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"webhook.event_type must be text, not {type(value).__name__}")
    if _EVENT_TYPE.fullmatch(value) is None:
        raise ValueError(
            "webhook.event_type must have 1 to 64 of a-z, 0-9, '_', '.' and '-', and begin with a letter or digit"
        )
    if f"{value}.".startswith(RESERVED_EVENTS):
        raise ValueError(f"webhook.event_type must not begin with {RESERVED_EVENTS!r}, which is reserved")


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Sequence) or isinstance(headers, str | bytes):
        raise TypeError(f"webhook.headers must be a sequence of Header, not {type(headers).__name__}")
    for header in headers:
        parts: tuple[object, ...] = (header.key, header.value) if isinstance(header, Header) else (None,)
        texts = [part for part in parts if isinstance(part, str)]
        if len(texts) < len(parts):
            raise TypeError("webhook.headers must hold Headers of text")
        if text_fault("".join(texts)) is not None:
            raise ValueError("webhook.headers must not hold a lone surrogate, which UTF-8 cannot write")


def _check_origin(
    webhook: OutboundWebhook, caller: str, plugin_origins: Collection[tuple[str, str]], *, host_signs: bool
) -> None:
    origin = webhook.origin
    if isinstance(origin, FlowNodeOrigin):
        _check_fields(origin, "webhook.origin", ("organization_id", "agent_id", "flow_id", "node_id"))
        organization_id = origin.organization_id
    elif isinstance(origin, LogicActionOrigin):
        check_ref(origin.ref)
        organization_id = origin.ref.organization_id
    elif isinstance(origin, HostOrigin):
        if caller != "host":
            raise ValueError(f"webhook.origin is of the host, and the caller is {caller!r}")
        if not host_signs:
            raise ValueError(
                "webhook.origin is a HostOrigin, and the host does not override signing_secret: override it, and "
                "return the secret of this origin, or None to send unsigned"
            )
        _check_fields(origin, "webhook.origin", ("organization_id", "name", "id"))
        organization_id = origin.organization_id
    elif isinstance(origin, PluginOrigin):
        _check_fields(origin, "webhook.origin", ("organization_id", "plugin", "name", "id"))
        if caller != f"plugin:{origin.plugin}":
            raise ValueError(f"webhook.origin is of plugin {origin.plugin!r}, and the caller is {caller!r}")
        declared = {name for plugin, name in plugin_origins if plugin == origin.plugin}
        if declared and origin.name not in declared:
            raise ValueError(
                f"webhook.origin.name {origin.name!r} is none that plugin {origin.plugin!r} declares by the hook "
                "flowactions_signing_secrets"
            )
        organization_id = origin.organization_id
    else:
        raise TypeError(f"webhook.origin must be an Origin, not {type(origin).__name__}")
    if organization_id != webhook.organization_id:
        raise ValueError("webhook.origin must be of the webhook's organization")


def _check_fields(struct: object, called: str, names: tuple[str, ...]) -> None:
    for name in names:
        check_id(f"{called}.{name}", getattr(struct, name))
