"""Faults on demand: selected by a token's text, or for the next call of a method.

| token holds          | every call with it                                             |
|----------------------|----------------------------------------------------------------|
| ``-ratelimited``     | 429, ``Retry-After: 1``, ``{"ok":false,"error":"ratelimited"}`` |
| ``-empty429``        | 429 with an empty body and no ``Retry-After``                  |
| ``-html503``         | 503 with an HTML body                                          |
| ``-garbage``         | 200 with a body that is no JSON                                |
| ``-drop``            | the connection is closed without an answer                     |
| ``-slow``            | the answer comes after 30 seconds                              |
| ``-fail-CODE``       | 200 with ``{"ok":false,"error":"CODE"}`` from chat.postMessage |

A token that begins with ``xoxb-fault-`` need not be issued: it belongs to the first workspace.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, NamedTuple


class Gate:
    """Holds calls until it is opened.

    Attributes:
        reached: set when a call waits.
        opened: set it to let the calls continue.
    """

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def passed(self) -> None:
        """Wait until it is open."""
        self.reached.set()
        await self.opened.wait()


class Fault(NamedTuple):
    """An answer in place of the real one.

    Attributes:
        status: the HTTP status; 0 closes the connection within an answer with 503.
        body: the raw body.
        headers: the headers.
        delay: seconds before the answer.
        passes: whether the real answer is given, so that a later call can have a fault.
        gate: the call waits at it before anything else.
    """

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    passes: bool = False
    gate: Gate | None = None


RATE_LIMITED = Fault(
    429,
    b'{"ok":false,"error":"ratelimited"}',
    (("retry-after", "1"), ("content-type", "application/json;charset=utf-8")),
)

BY_TOKEN: dict[str, Fault] = {
    "-ratelimited": RATE_LIMITED,
    "-empty429": Fault(429),
    "-html503": Fault(503, b"<html>Service unavailable</html>", (("content-type", "text/html"),)),
    "-garbage": Fault(200, b"not json", (("content-type", "application/json;charset=utf-8"),)),
    "-drop": Fault(0),
    "-slow": Fault(200, b'{"ok":true}', (("content-type", "application/json;charset=utf-8"),), 30.0),
}


def refusal(code: str, **more: Any) -> dict[str, Any]:
    """Return the body of a refusal; the provider sends it with status 200."""
    return {"ok": False, "error": code, **more}


def fault_of(token: str) -> Fault | None:
    """Return the fault that a token's text selects."""
    return next((fault for text, fault in BY_TOKEN.items() if text in token), None)


def failing_code(token: str) -> str | None:
    """Return the error code with which chat.postMessage fails for a token's text."""
    match = re.search(r"-fail-([a-z_]+)", token)
    return match[1] if match else None
