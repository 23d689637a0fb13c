"""Logic actions: what points at one, what it says, and the types that plugins offer (§2.8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.origins import LogicActionRef
from flowactions_hookspecs.webhooks import Header, Receipt

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection
else:
    # msgspec resolves annotations at run time, and the contract imports no SQLAlchemy.
    AsyncConnection = Any


class Firing(ContractStruct, frozen=True, kw_only=True):
    """A logic action fired on the server.

    Args:
        ref: the action.
        firing_id: names this firing among all of the action's: the same when it is dispatched again.
        occurred_at: when it fired, with time zone; the envelope says so (§2.7).
    """

    ref: LogicActionRef
    firing_id: str
    occurred_at: datetime


class LogicAction(ContractStruct, frozen=True, kw_only=True):
    """A webhook action as the host has it configured (§2.8). Only the destination shows in the repr."""

    url: str
    method: str = "POST"
    headers: Sequence[Header] = ()
    secret: str | None = None

    def __repr__(self) -> str:
        return f"LogicAction(url={self.url!r}, method={self.method!r}, …)"


class LogicActionType(ContractStruct, frozen=True, kw_only=True):
    """A kind of logic action.

    Args:
        name: unique in a host, for example ``webhook``.
        dispatch: async callable that enqueues or runs an action that fired, within the host's transaction when it is
            given one.
    """

    name: str
    dispatch: Callable[[Firing, AsyncConnection | None], Awaitable[Receipt]]
