"""Logic actions: references to them, their configuration, and the types that plugins offer (§2.8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from flowactions_hookspecs.base import AsyncConnection, ContractStruct
from flowactions_hookspecs.origins import LogicActionRef
from flowactions_hookspecs.webhooks import Header, Receipt


class Firing(ContractStruct, frozen=True, kw_only=True):
    """A logic action fired on the server.

    Args:
        ref: the action.
        firing_id: the id of this firing, unique for the action; the same if it is dispatched again.
        occurred_at: when it fired, with time zone; the envelope contains it (§2.7).
    """

    ref: LogicActionRef
    firing_id: str
    occurred_at: datetime


class LogicAction(ContractStruct, frozen=True, kw_only=True):
    """A webhook action as it is configured in the host (§2.8). The repr shows only URL and method.

    Args:
        url: the destination.
        method: the name of an HTTP method.
        headers: custom headers.
        secret: the signing secret; ``None``: unsigned.
        order_key: as of `OutboundWebhook`.
    """

    url: str
    method: str = "POST"
    headers: Sequence[Header] = ()
    secret: str | None = None
    order_key: str | None = None

    def __repr__(self) -> str:
        return f"LogicAction(url={self.url!r}, method={self.method!r}, …)"


class LogicActionType(ContractStruct, frozen=True, kw_only=True):
    """A kind of logic action.

    Args:
        name: unique in a host, for example ``webhook``.
        dispatch: async callable that enqueues or runs an action that fired, in the host's transaction if it
            gets one.
    """

    name: str
    dispatch: Callable[[Firing, AsyncConnection | None], Awaitable[Receipt]]
