"""What hosts and their drivers make of the kit's worlds, whatever walks their flows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowactions_conformance import Action, TriggerRef
from flowactions_hookspecs import ExperienceTriggerRef


def every_item(items: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Yield the items of a flow, as JSON, with those of its loops and branches."""
    for item in items:
        yield item
        for name in ("items", "taken", "other"):
            yield from every_item(item.get(name, ()))


def preview_body(agent_id: str, flow_id: str, node: Action) -> Mapping[str, Any]:
    """Return what an editor sends for a preview of a node."""
    shown = {"id": node.id, "type": node.type, "config": node.config}
    return {"agentId": agent_id, "node": shown, "walk": {"flowId": flow_id}}


def trigger_of(ref: TriggerRef) -> ExperienceTriggerRef:
    """Return the contract's reference to a trigger of an experience, for hosts whose ids are the kit's."""
    return ExperienceTriggerRef(
        organization_id=ref.organization,
        agent_id=ref.agent,
        experience_id=ref.experience,
        trigger_row_id=ref.trigger,
        action_index=ref.action_index,
    )
