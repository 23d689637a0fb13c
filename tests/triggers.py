"""References of logic actions that several tests dispatch."""

from __future__ import annotations

from flowactions_hookspecs import ExperienceTriggerRef, NodeTriggerRef

EXPERIENCE = ExperienceTriggerRef(
    organization_id="acme", agent_id="a1", experience_id="e1", trigger_row_id="t1", action_index=0
)
NODE_TRIGGER = NodeTriggerRef(
    organization_id="acme",
    agent_id="a1",
    experience_id="e1",
    node_id="n1",
    node_trigger_group_id="g1",
    action_index=0,
)
