"""What a host or plugin may give: checked before anything happens, so that both databases answer alike.

Ids end up in keys of tables and in event ids. PostgreSQL stores no NUL, neither database stores a lone surrogate, an
empty step would be the end of the flow, and SQLite would take a number that PostgreSQL refuses.

What has another type raises a `TypeError`, and any other value that cannot be used a `ValueError`. The message names the
argument or field, and holds no value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from types import UnionType
from typing import Final

from flowactions_hookspecs.logic import Firing
from flowactions_hookspecs.nodes import Deferred, Eager, Node, NodeDraft, Walk
from flowactions_hookspecs.origins import (
    ExperienceTriggerRef,
    FlowNodeOrigin,
    HostOrigin,
    LogicActionOrigin,
    LogicActionRef,
    NodeTriggerRef,
    PluginOrigin,
)
from flowactions_hookspecs.webhooks import Header, OutboundWebhook

MAX_ID_LENGTH: Final = 255
"""Characters."""

_METHOD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,32}", re.ASCII)
"""A token (RFC 9110 §5.6.2), as long as the outbox keeps it."""

_RESERVED_EVENTS: Final = "experience."
"""Event types of the specification's own webhooks begin with it (§6.1)."""

_EVENT_TYPE: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}", re.ASCII)


def id_fault(value: object) -> str | None:
    """Return what an id must be and the value is not, to follow its name in a message; ``None``: it is an id."""
    if not isinstance(value, str):
        return f"must be text, not {type(value).__name__}"
    if not value:
        return "must not be empty"
    if len(value) > MAX_ID_LENGTH:
        return f"must have at most {MAX_ID_LENGTH} characters, not {len(value)}"
    if "\0" in value:
        return "must not hold a NUL character"
    return _text_fault(value)


def path_id_fault(value: object) -> str | None:
    """Return the same of an id of an agent or an experience, which stands in paths of routes."""
    if fault := id_fault(value):
        return fault
    if "/" in str(value) or value in {".", ".."}:
        return "must not hold a slash, and not be '.' or '..', because it stands in paths"
    return None


def check_optional_id(name: str, value: object) -> None:
    """Check an id that may be ``None``: as a step, the end of the flow."""
    if value is not None:
        _check_id(name, value)


def check_run(walk: Walk) -> None:
    """Check those ids of a walk that name its run."""
    _check_type("walk", walk, Walk, "a Walk")
    _check_ids("walk", walk, "organization_id", "flow_id", "run_id")


def check_walk(walk: Walk) -> None:
    """Check a walk whose node is reached. ``user_id`` and ``content`` may be any text."""
    check_run(walk)
    _check_ids("walk", walk, "agent_id", "visit")
    for name in ("user_id", "content"):
        _check_type(f"walk.{name}", getattr(walk, name), str, "text")
    _check_type("walk.pacing", walk.pacing, Deferred | Eager, "Eager or Deferred")
    if isinstance(walk.pacing, Deferred):
        check_optional_id("walk.pacing.next_step_id", walk.pacing.next_step_id)


def check_node(node: Node) -> None:
    """Check a node that is reached; what is in its config is the author's, and is not looked at."""
    _check_type("node", node, Node, "a Node")
    _check_ids("node", node, "id", "type")
    _check_type("node.config", node.config, Mapping, "a mapping")


def check_firing(firing: Firing) -> None:
    """Check a logic action's firing."""
    _check_ref(firing.ref)
    _check_id("firing_id", firing.firing_id)
    _check_type("occurred_at", firing.occurred_at, datetime, "a datetime")
    if firing.occurred_at.utcoffset() is None:
        raise ValueError("occurred_at must have a time zone")
    try:
        firing.occurred_at.astimezone(UTC)
    except OverflowError:
        raise ValueError("occurred_at is out of range") from None


def check_draft(draft: NodeDraft, walk: Walk | None = None) -> None:
    """Check a draft, and the walk that its preview or test is made with, which is of the same organization."""
    _check_type("draft", draft, NodeDraft, "a NodeDraft")
    _check_ids("draft", draft, "organization_id", "agent_id")
    check_node(draft.node)
    if walk is not None:
        check_walk(walk)
        if walk.organization_id != draft.organization_id:
            raise ValueError("walk.organization_id must be that of the draft")


def check_webhook(
    webhook: OutboundWebhook, caller: str, plugin_origins: Collection[tuple[str, str]], *, host_signs: bool
) -> None:
    """Check a webhook of a host's or plugin's own.

    Args:
        webhook: the webhook.
        caller: ``host`` or ``plugin:<name>``.
        plugin_origins: plugins and the names of their origins, as their hooks declare them. A plugin that declares none
            sends unsigned.
        host_signs: whether the host overrides `Host.signing_secret`, whose default knows no `HostOrigin`.
    """
    _check_type("webhook", webhook, OutboundWebhook, "an OutboundWebhook")
    _check_ids("webhook", webhook, "organization_id")
    check_optional_id("webhook.agent_id", webhook.agent_id)
    for name in ("idempotency_key", "order_key"):
        key = getattr(webhook, name)
        check_optional_id(f"webhook.{name}", key)
        if key is not None and len(key) > 200:
            raise ValueError(f"webhook.{name} must have at most 200 characters, not {len(key)}")
    _check_event_type(webhook.event_type)
    for name in ("entity", "url", "method"):
        _check_text(f"webhook.{name}", getattr(webhook, name))
    if not webhook.entity:
        raise ValueError("webhook.entity must not be empty")
    if _METHOD.fullmatch(webhook.method) is None or webhook.method.upper() == "CONNECT":
        raise ValueError("webhook.method must be the name of an HTTP method, such as POST")
    if webhook.body is not None:
        _check_type("webhook.body", webhook.body, bytes, "bytes")
    _check_type("webhook.headers", webhook.headers, Sequence, "a sequence of Header", but=str | bytes)
    for header in webhook.headers:
        _check_type("webhook.headers", header, Header, "a sequence of Header")
        _check_text("webhook.headers", header.key)
        _check_text("webhook.headers", header.value)
    if webhook.max_attempts is not None:
        _check_number("webhook.max_attempts", webhook.max_attempts, 1, 10)
    _check_origin(webhook, caller, plugin_origins, host_signs=host_signs)


def _check_event_type(value: str) -> None:
    _check_type("webhook.event_type", value, str, "text")
    if _EVENT_TYPE.fullmatch(value) is None:
        raise ValueError(
            "webhook.event_type must have 1 to 64 of a-z, 0-9, '_', '.' and '-', and begin with a letter or digit"
        )
    if f"{value}.".startswith(_RESERVED_EVENTS):
        raise ValueError(f"webhook.event_type must not begin with {_RESERVED_EVENTS!r}, which is reserved")


def _check_origin(
    webhook: OutboundWebhook, caller: str, plugin_origins: Collection[tuple[str, str]], *, host_signs: bool
) -> None:
    origin = webhook.origin
    kinds = FlowNodeOrigin | LogicActionOrigin | HostOrigin | PluginOrigin
    _check_type("webhook.origin", origin, kinds, "an Origin")
    if isinstance(origin, LogicActionOrigin):
        _check_ref(origin.ref)
        organization_id = origin.ref.organization_id
    else:
        _check_ids("webhook.origin", origin, *origin.__struct_fields__)
        organization_id = origin.organization_id
    if isinstance(origin, HostOrigin):
        if caller != "host":
            raise ValueError(f"webhook.origin is of the host, and the caller is {caller!r}")
        if not host_signs:
            raise ValueError(
                "webhook.origin is a HostOrigin, and the host does not override signing_secret: override it, and "
                "return the secret of this origin, or None to send unsigned"
            )
    elif isinstance(origin, PluginOrigin):
        if caller != f"plugin:{origin.plugin}":
            raise ValueError(f"webhook.origin is of plugin {origin.plugin!r}, and the caller is {caller!r}")
        declared = {name for plugin, name in plugin_origins if plugin == origin.plugin}
        if declared and origin.name not in declared:
            raise ValueError(
                f"webhook.origin.name {origin.name!r} is none that plugin {origin.plugin!r} declares by the hook "
                "flowactions_signing_secrets"
            )
    if organization_id != webhook.organization_id:
        raise ValueError("webhook.origin must be of the webhook's organization")


def _check_ref(ref: LogicActionRef) -> None:
    """Check what points at a logic action."""
    kinds = ExperienceTriggerRef | NodeTriggerRef
    _check_type("ref", ref, kinds, "an ExperienceTriggerRef or a NodeTriggerRef")
    _check_ids("ref", ref, "organization_id", "agent_id", "experience_id")
    if isinstance(ref, NodeTriggerRef):
        _check_ids("ref", ref, "node_id", "node_trigger_group_id")
        check_optional_id("ref.question_id", ref.question_id)
    else:
        _check_ids("ref", ref, "trigger_row_id")
    _check_number("ref.action_index", ref.action_index, 0, 2**31 - 1)


def _check_type(
    name: str, value: object, kind: type | UnionType, words: str, but: type | UnionType = bool
) -> None:
    """Check a type, which ``words`` name in the message; a value of the type ``but`` is refused, too."""
    if not isinstance(value, kind) or isinstance(value, but):
        raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def _check_number(name: str, value: int, least: int, most: int) -> None:
    _check_type(name, value, int, "an int")
    if not least <= value <= most:
        raise ValueError(f"{name} must be within {least} and {most}")


def _check_text(name: str, value: str) -> None:
    _check_type(name, value, str, "text")
    if (fault := _text_fault(value)) is not None:
        raise ValueError(f"{name} {fault}")


def _text_fault(value: str) -> str | None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return "must not hold a lone surrogate, which UTF-8 cannot write"
    return None


def _check_id(name: str, value: object) -> None:
    is_in_paths = name.endswith(("agent_id", "experience_id"))
    if (fault := (path_id_fault if is_in_paths else id_fault)(value)) is not None:
        raise (ValueError if isinstance(value, str) else TypeError)(f"{name} {fault}")


def _check_ids(called: str, struct: object, *names: str) -> None:
    for name in names:
        _check_id(f"{called}.{name}", getattr(struct, name))
