"""Lifecycle events, signed as the provider signs them (scheme v0)."""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Any

import httpx


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the signature of an event: ``v0=`` and the HMAC-SHA256 of ``v0:<timestamp>:<body>`` in hex."""
    signed = f"v0:{timestamp}:".encode() + body
    return f"v0={hmac.new(secret.encode(), signed, 'sha256').hexdigest()}"


async def send_event(url: str, secret: str, now: int, team_id: str, event: dict[str, Any]) -> int:
    """Deliver an event once; return the status of the answer.

    Raises:
        httpx.HTTPError: nobody answered within three seconds.
    """
    wrapper = {
        "type": "event_callback",
        "team_id": team_id,
        "api_app_id": "A0FAKE",
        "event": event,
        "event_id": f"Ev{secrets.token_hex(5).upper()}",
        "event_time": now,
    }
    body = json.dumps(wrapper).encode()
    headers = {
        "content-type": "application/json",
        "x-slack-request-timestamp": str(now),
        "x-slack-signature": signature(secret, now, body),
    }
    async with httpx.AsyncClient(timeout=3, trust_env=False) as client:
        return (await client.post(url, content=body, headers=headers)).status_code
