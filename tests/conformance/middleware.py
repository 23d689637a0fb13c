"""Middlewares that mutants put around the reference host's app: each is what a host author's framework may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

PLUGIN = ("/integrations", "/v1/", "/webhooks")


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes = b""


class Asked(NamedTuple):
    """A request below the plugin's paths."""

    method: str
    path: str
    headers: Mapping[str, str]


Refuse: TypeAlias = Callable[[Asked], Answer | None]
Rewrite: TypeAlias = Callable[[Asked, Answer], Answer]


def around(
    app: App,
    *,
    refuse: Refuse = lambda _: None,
    scope_of: Callable[[Scope], Scope] = lambda scope: scope,
    body_of: Callable[[bytes], bytes] | None = None,
    rewrite: Rewrite | None = None,
) -> App:
    """Returns an app that does something to requests below the plugin's paths; everything else passes.

    Args:
        app: inside.
        refuse: returns an answer in place of the app's, or ``None``.
        scope_of: changes the scope.
        body_of: changes the request's body.
        rewrite: changes the answer.
    """

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PLUGIN):
            await app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        asked = Asked(scope["method"], scope["path"], headers)
        refusal = refuse(asked)
        if refusal is not None:
            await send_answer(send, refusal)
            return
        inner_receive = receive if body_of is None else again(body_of(await whole(receive)))
        if rewrite is None:
            await app(scope_of(scope), inner_receive, send)
            return
        await send_answer(send, rewrite(asked, await _answer(app, scope_of(scope), inner_receive)))

    return outer


async def answer_of(app: App, scope: Scope, body: bytes) -> Answer:
    """Returns what an app answers to a request with this body."""
    return await _answer(app, scope, again(body))


async def _answer(app: App, scope: Scope, receive: Receive) -> Answer:
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, keep)
    begun = next(each for each in messages if each["type"] == "http.response.start")
    body = b"".join(each.get("body", b"") for each in messages if each["type"] == "http.response.body")
    return Answer(begun["status"], list(begun["headers"]), body)


def json_answer(status: int, body: bytes) -> Answer:
    """Returns an answer of the host's own."""
    return Answer(status, [(b"content-type", b"application/json")], body)


async def send_answer(send: Send, answer: Answer) -> None:
    headers = [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def whole(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


def again(body: bytes) -> Receive:
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
