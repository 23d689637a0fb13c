"""A node type, and what the checks of plugins do with it."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from flowactions_conformance.kit.outcomes import CheckFailed
from flowactions_conformance.receiver import Receiver
from flowactions_conformance.reference_host.app import ReferenceApp
from flowactions_hookspecs import (
    Deferred,
    FlowActions,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    Walk,
)

STEP: Final = "step-2"
DELIVERED_SECONDS: Final = 20.0
ORGANIZATION: Final = "kit-org"
AGENT: Final = "kit-agent"


class Row(NamedTuple):
    """A delivery, as it stands in the outbox."""

    event_id: str
    status: str
    origin: dict[str, Any]
    error: str | None


class Tried:
    """A node type, and what the checks do with it.

    Args:
        plugin: its plugin's name.
        node_type: of the first host.
        config: a valid one.
        hosts: two, in one process.
        receiver: where webhooks go.
    """

    def __init__(
        self,
        plugin: str,
        node_type: NodeType,
        config: Mapping[str, Any],
        hosts: Sequence[tuple[ReferenceApp, Path]],
        receiver: Receiver,
    ) -> None:
        self.plugin = plugin
        self.node_type = node_type
        self.config = config
        self.hosts = hosts
        self.receiver = receiver
        self._patience = DELIVERED_SECONDS

    @property
    def actions(self) -> FlowActions:
        """Of the first host."""
        return self.hosts[0][0].actions

    def walk(self, **changes: Any) -> Walk:
        """Return a walk of a new run."""
        ids = {"organization_id": ORGANIZATION, "agent_id": AGENT, "flow_id": "kit-flow", "user_id": "kit-user"}
        return Walk(**{**ids, "run_id": secrets.token_hex(8), "content": "hello", **changes})

    def node(self, config: Mapping[str, Any] | None = None) -> Node:
        """Return a node with this config, by default the valid one."""
        return Node(id="kit-node", type=self.node_type.name, config=self.config if config is None else config)

    def draft(self, config: Mapping[str, Any] | None = None) -> NodeDraft:
        """Return the node as its author has it in the editor."""
        return NodeDraft(organization_id=ORGANIZATION, agent_id=AGENT, node=self.node(config))

    async def advanced(self, walk: Walk) -> NodeResult:
        """Record the node in a client-paced walk, advance to its step, and return the result."""
        recorded = await self.actions.reach(msgspec.structs.replace(walk, pacing=Deferred(STEP)), self.node())
        expect(
            recorded.status == "recorded",
            "the node is not recorded in a client-paced walk",
            "recorded, by the runtime",
            recorded,
        )
        return (await self.actions.advance(walk, STEP)).results[0]

    def rows(self, host: int = 0) -> list[Row]:
        """Return the deliveries of a host, oldest first."""
        statement = (
            "SELECT event_id, status, origin, last_error FROM flowactions_outbox ORDER BY created_at, id"
        )
        return [
            Row(row[0], row[1], json.loads(row[2]), row[3]) for row in _read(self.hosts[host][1], statement)
        ]

    async def ended(self) -> list[Row]:
        """Return the deliveries of the first host, once none of them is to be sent any more; what does not end is awaited once."""
        until = time.monotonic() + self._patience
        while any(row.status in {"pending", "retrying"} for row in self.rows()):
            if time.monotonic() > until:
                self._patience = 0.0
                break
            await asyncio.sleep(0.05)
        return self.rows()


def _read(path: Path, statement: str) -> Sequence[Any]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(statement).fetchall()


def expect(holds: object, message: str, expected: object = "", actual: object = "") -> None:
    """Fail the check unless something holds.

    Raises:
        CheckFailed: it does not.
    """
    if not holds:
        raise CheckFailed(message, expected=expected, actual=actual)
