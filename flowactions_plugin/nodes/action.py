"""What a node does, in two parts: what a transaction can hold, and what it cannot."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias

from flowactions_hookspecs import Node, NodeResult, Walk
from flowactions_plugin.storage.database import Connection

Write: TypeAlias = Callable[[Connection | None], Awaitable[None]]
Send: TypeAlias = Callable[[], Awaitable[NodeResult]]


class Action(NamedTuple):
    """What is left to do for a node that was reached.

    Attributes:
        outcome: the node's result, or what is done after the transaction to get it.
        write: done within a transaction, together with removing the node's record when it was deferred; with
            ``None``, in one of its own.
    """

    outcome: NodeResult | Send
    write: Write | None = None

    async def result(self) -> NodeResult:
        """Do what is left after the transaction, and give the node's result."""
        return self.outcome if isinstance(self.outcome, NodeResult) else await self.outcome()


class Runner(Protocol):
    """A node type's behaviour."""

    async def prepare(self, walk: Walk, node: Node) -> Action:
        """Check the node's config and give what is left to do; writes and sends nothing itself."""
        ...
