"""Middlewares that mutants put around the reference host's app: each is what a host author's framework may do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]

PLUGIN = ("/integrations", "/v1/", "/webhooks")


class Answer(NamedTuple):
    """A whole answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""


class Asked(NamedTuple):
    """A request below the plugin's paths."""

    method: str
    path: str
    headers: Mapping[str, str]


def around(
    app: App,
    *,
    refuse: Callable[[Asked], Answer | None] = lambda _: None,
    scope_of: Callable[[Scope], Scope] = lambda scope: scope,
    body_of: Callable[[bytes], bytes] = lambda body: body,
    rewrite: Callable[[Asked, Answer], Answer] = lambda _, answer: answer,
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
        answer = refuse(asked)
        if answer is None:
            body = body_of(await whole(receive))
            answer = rewrite(asked, await answer_of(app, scope_of(scope), body))
        await send_answer(send, answer)

    return outer


async def answer_of(app: App, scope: Scope, body: bytes) -> Answer:
    """Returns what an app answers to a request with this body."""
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    await app(scope, again(body), keep)
    begun = next(each for each in messages if each["type"] == "http.response.start")
    content = b"".join(each.get("body", b"") for each in messages if each["type"] == "http.response.body")
    return Answer(begun["status"], list(begun["headers"]), content)


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
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
