"""The auth provider's side: events signed with the scheme's own library, and a host that receives them."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from typing import Any

import httpx
import standardwebhooks

from flowactions_hookspecs import FlowActions
from tests.support import SmallHost, transport_of

OLD, NEW, OTHER = ("whsec_" + base64.b64encode(bytes([number]) * 24).decode() for number in (1, 2, 3))
CREATED = {"type": "user.created", "object": "event", "data": {"id": "user_1", "name": "Zoë"}}


def signed(body: bytes, secret: str = NEW, event_id: str = "msg_1", at: float | None = None) -> dict[str, str]:
    """Sign as the auth provider does, with the scheme's own library."""
    stamp = int(time.time() if at is None else at)
    moment = datetime.fromtimestamp(stamp, UTC)
    signature = standardwebhooks.Webhook(secret).sign(event_id, moment, body.decode())
    return {"svix-id": event_id, "svix-timestamp": str(stamp), "svix-signature": signature}


class Running:
    def __init__(self, host: SmallHost, actions: FlowActions) -> None:
        self.host = host
        transport = transport_of(actions)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://host")

    async def send(
        self, event: Any = None, headers: dict[str, str] | None = None, **how: Any
    ) -> httpx.Response:
        body = event if isinstance(event, bytes) else json.dumps(CREATED if event is None else event).encode()
        return await self.client.post(
            "/webhooks/auth", content=body, headers=signed(body, **how) if headers is None else headers
        )
