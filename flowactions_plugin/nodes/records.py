"""What waits for a content step, as it is kept and as it is read again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from flowactions_hookspecs import Deferred, Node, Walk

WALK_FIELDS: Final = ("agent_id", "user_id", "content")
"""What a record keeps of the walk beside its own columns."""


RAN_FLOW: Final = ""
"""Instead of a flow's id, in a record that has run."""


class Step(NamedTuple):
    """A content step of one run of a flow; ``step_id`` is empty for the end of the flow."""

    organization_id: str
    run_id: str
    flow_id: str
    step_id: str


class Record(NamedTuple):
    """A node that waits, the walk as it was when the node was reached, and the token of its lease (§3.2)."""

    id: int
    walk: Walk
    node: Node
    token: str


class Lease(NamedTuple):
    """The answer to asking for a step's records.

    Attributes:
        state: ``leased`` (the records are the caller's to run), or why there are none: ``done`` (nothing waits),
            ``running`` (somebody else leases them), ``halted`` (the run was halted before), ``unavailable`` (the first
            one is of a type that is not offered here).
        records: those that the caller leases, in walk order.
        blocked: whether behind them waits one of a type that is not offered here.
    """

    state: Literal["leased", "done", "running", "halted", "unavailable"]
    records: Sequence[Record] = ()
    blocked: bool = False


def step_of(walk: Walk, step_id: str | None) -> Step:
    """Name the step of a walk's run; ``None`` is the end of the flow."""
    return Step(walk.organization_id, walk.run_id, walk.flow_id, step_id or "")


def ran_prefix(flow_id: str) -> str:
    """Return what precedes the step of a record that has run, in its column ``step_id``.

    Its column ``flow_id`` is empty then. No flow has such an id, so only a `reach` that asks for it finds the record;
    processes of revision 0004 never do.
    """
    return f"{len(flow_id)}:{flow_id}"


def columns_of(walk: Walk, node: Node, step_id: str | None) -> dict[str, str]:
    """Return what is kept of a node that waits for a step, column by column."""
    return {
        **step_of(walk, step_id)._asdict(),
        "node_id": node.id,
        "visit": walk.visit,
        "node_type": node.type,
        # Written as ASCII: a text that UTF-8 cannot hold is kept, too.
        "walk": json.dumps({name: getattr(walk, name) for name in WALK_FIELDS}),
        "node": json.dumps(
            {"id": node.id, "type": node.type, "version": node.version, "config": dict(node.config)}
        ),
    }


def read_record(row_id: int, token: str, step: Step, columns: Mapping[str, Any]) -> Record | None:
    """Read what was kept.

    Args:
        row_id: the record's.
        token: of its lease.
        step: the step that it waits for; a record runs for no other run, whatever it says.
        columns: ``node_id``, ``node_type``, ``visit``, ``walk`` and ``node`` as they are stored.

    Returns:
        The record; ``None`` when it is corrupt.
    """
    texts = {name: stored_text(value) for name, value in columns.items()}
    node_id, visit, walk_text, node_text = (texts[name] for name in ("node_id", "visit", "walk", "node"))
    if node_id is None or visit is None or walk_text is None or node_text is None:
        return None
    try:
        walk, node = json.loads(walk_text), json.loads(node_text)
        kept = {name: walk[name] for name in WALK_FIELDS}
        config = node["config"]
        version = node.get("version", 1)  # records of release 0.1.0 have none
        same = (node["id"], node["type"]) == (node_id, texts["node_type"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    if (
        not same
        or not isinstance(config, dict)
        or not isinstance(version, int)
        or not all(isinstance(value, str) for value in kept.values())
    ):
        return None
    whole = Walk(
        organization_id=step.organization_id,
        run_id=step.run_id,
        flow_id=step.flow_id,
        visit=visit,
        pacing=Deferred(step.step_id or None),
        **kept,
    )
    return Record(row_id, whole, Node(id=node_id, type=node["type"], config=config, version=version), token)


def stored_text(stored: object) -> str | None:
    """Read a stored text, given as text or as bytes; ``None`` when it is none."""
    if not isinstance(stored, bytes):
        return stored if isinstance(stored, str) else None
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return None
