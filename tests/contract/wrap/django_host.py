"""A host in Django, which has no lifespan and no WebSockets."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

from tests.contract.wrap.probe import Wrap
from tests.django_sites import site


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


async def login(request: Any) -> HttpResponse:
    await request.session.aset("name", request.body.decode())
    return HttpResponse("welcome")


async def who(request: Any) -> HttpResponse:
    return JsonResponse({"name": await request.session.aget("name"), "keys": sorted(request.scope)})


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
            path("login", login),
            path("who", who),
        ],
        [
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
        ],
    )
    return app if wrap is None else wrap(app)
