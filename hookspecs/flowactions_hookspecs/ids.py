"""What an id may be: checked before anything happens, so that both databases answer alike.

Ids end up in keys of tables and in event ids. PostgreSQL stores no NUL, neither database stores a lone surrogate, an
empty step would be the end of the flow, and SQLite would take a number that PostgreSQL refuses.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from flowactions_hookspecs.logic import ExperienceTriggerRef, Firing, NodeTriggerRef
from flowactions_hookspecs.nodes import Node, Walk

MAX_ID_LENGTH: Final = 255
"""Characters."""

MAX_ACTION_INDEX: Final = 2**31 - 1

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
        ValueError: an id or the pacing cannot be used.
    """
    check_run(walk)
    _check_fields(walk, "walk", WALK_IDS)
    for name in ("user_id", "content"):
        value = getattr(walk, name)
        if not isinstance(value, str):
            raise TypeError(f"walk.{name} must be text, not {type(value).__name__}")
    if walk.pacing not in ("eager", "deferred"):
        raise ValueError(f"walk.pacing must be 'eager' or 'deferred', not {walk.pacing!r}")
    check_step("walk.next_step_id", walk.next_step_id)


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


def check_firing(firing: Firing) -> None:
    """Check a logic action's firing.

    Raises:
        TypeError: something has the wrong type.
        ValueError: an id or the index cannot be used, or ``occurred_at`` has no time zone.
    """
    ref = firing.ref
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
    check_id("firing_id", firing.firing_id)
    if not isinstance(firing.occurred_at, datetime):
        raise TypeError(f"occurred_at must be a datetime, not {type(firing.occurred_at).__name__}")
    if firing.occurred_at.utcoffset() is None:
        raise ValueError("occurred_at must have a time zone")
    try:
        firing.occurred_at.astimezone(UTC)
    except OverflowError:
        raise ValueError("occurred_at is out of range") from None


def _check_fields(struct: object, called: str, names: tuple[str, ...]) -> None:
    for name in names:
        check_id(f"{called}.{name}", getattr(struct, name))
