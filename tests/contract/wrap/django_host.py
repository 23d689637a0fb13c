"""A host in Django, which has no lifespan and no WebSockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path

from tests.contract.wrap.probe import Wrap
from tests.django_sites import site


class Refused(Exception):
    """An error of the host's, for which its middleware has an answer."""


def refusing(get_response: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Answer a `Refused`; Django asks a middleware's `process_exception`."""

    class Middleware:
        async_capable = True
        sync_capable = False

        def __init__(self) -> None:
            from asgiref.sync import markcoroutinefunction  # noqa: PLC0415  comes with Django

            markcoroutinefunction(self)

        async def __call__(self, request: Any) -> Any:
            return await get_response(request)

        async def process_exception(self, request: Any, exc: Exception) -> Any:
            return JsonResponse({"refused": str(exc)}, status=409) if isinstance(exc, Refused) else None

    return Middleware()


refusing.async_capable = True  # type: ignore[attr-defined]
refusing.sync_capable = False  # type: ignore[attr-defined]


async def item(request: HttpRequest, name: str = "") -> HttpResponse:
    return JsonResponse(
        {"item": name, "url": request.build_absolute_uri(), "prefix": request.META["SCRIPT_NAME"]}
    )


async def create(request: HttpRequest) -> HttpResponse:
    if request.method not in {"POST", "PUT"}:
        return HttpResponse(status=405, headers={"allow": "POST, PUT"})
    return HttpResponse(request.body, status=201, content_type="application/json")


async def boom(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("boom")


async def refuse(request: HttpRequest) -> HttpResponse:
    raise Refused("by hand")


async def login(request: Any) -> HttpResponse:
    await request.session.aset("name", request.body.decode())
    return HttpResponse("welcome")


async def who(request: Any) -> HttpResponse:
    return JsonResponse({"name": await request.session.aget("name"), "keys": sorted(request.scope)})


async def stream(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[str]:
        for number in range(5):
            yield f"part {number}\n"

    return StreamingHttpResponse(parts(), content_type="text/plain")


async def upload(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"total": len(request.body)})


def django_host(wrap: Wrap | None, events: list[str] | None = None, fails: str = "") -> Any:
    """Make the host."""
    app = site(
        [
            path("items/<str:name>", item),
            path("v1/agents/<str:name>", item),
            path("items", create),
            path("v1/webhooks/outbox", create),
            path("slash/", item),
            path("boom", boom),
            path("refuse", refuse),
            path("login", login),
            path("who", who),
            path("stream", stream),
            path("upload", upload),
        ],
        [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            f"{__name__}.refusing",
        ],
    )
    return app if wrap is None else wrap(app)
