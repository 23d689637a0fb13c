"""What LangGraph's small graphs have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig

from flowactions_hookspecs import Walk
from tests.conformance.hosts.small_host import walk


def walk_of(state: Mapping[str, Any], config: RunnableConfig) -> Walk:
    """Make the walk of a thread."""
    return walk(config["configurable"]["thread_id"], state.get("said", ""))
