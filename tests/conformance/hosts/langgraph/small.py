"""What LangGraph's small graphs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from flowactions_hookspecs import Walk


def walk_of(state: Mapping[str, Any], config: RunnableConfig) -> Walk:
    """Make the walk of a thread."""
    return Walk(
        organization_id="acme",
        agent_id="agent",
        flow_id="welcome",
        run_id=config["configurable"]["thread_id"],
        content=state.get("said", ""),
    )
