"""The routes for orchestrators and load balancers: one word each, without a credential."""

from __future__ import annotations

from typing import Final

from litestar import Response, Router, get
from litestar.di import NamedDependency
from litestar.enums import MediaType
from litestar.openapi.datastructures import ResponseSpec
from litestar.status_codes import HTTP_503_SERVICE_UNAVAILABLE

from flowactions_plugin.http.openapi import OPEN, plugin_router
from flowactions_plugin.http.problems import NO_STORE
from flowactions_plugin.watch.readiness import Health

BASE_PATH: Final = "/integrations/health"


@get("/live", summary="Whether this process answers", media_type=MediaType.TEXT, security=[], opt=OPEN)
async def live() -> Response[str]:
    """Answer ``live``: the event loop of this process is not blocked. An orchestrator restarts a process that does not answer."""
    return Response("live", media_type=MediaType.TEXT, headers=NO_STORE)


@get(
    "/ready",
    summary="Whether this process can work",
    media_type=MediaType.TEXT,
    security=[],
    opt=OPEN,
    responses={
        HTTP_503_SERVICE_UNAVAILABLE: ResponseSpec(
            data_container=str,
            generate_examples=False,
            media_type=MediaType.TEXT,
            description="`starting`: the lifespan is not open; `database`: it does not answer; `tables`: they are of an"
            " earlier release; `unwritable`: the database takes no writes, where `FLOWACTIONS_READY_NEEDS_WRITES` is `on`.",
        )
    },
)
async def ready(health: NamedDependency[Health], needs_writes: NamedDependency[bool]) -> Response[str]:
    """Answer ``ready``, or with status 503 the one thing that is missing. It is looked at most once a second.

    A database that takes no writes is named with status 200, because hosts work without webhooks, unless
    `FLOWACTIONS_READY_NEEDS_WRITES` is `on`.
    """
    word = await health.readiness()
    works = {"ready"} if needs_writes else {"ready", "unwritable"}
    status = 200 if word in works else HTTP_503_SERVICE_UNAVAILABLE
    return Response(word, status_code=status, media_type=MediaType.TEXT, headers=NO_STORE)


def health_router(health: Health, *, needs_writes: bool) -> Router:
    """Return the router of the health of this process.

    Args:
        health: looks whether it can work.
        needs_writes: whether a process is ready only while the database takes writes.
    """
    dependencies = {"health": health, "needs_writes": needs_writes}
    return plugin_router(BASE_PATH, live, ready, dependencies=dependencies, tags=["Health"])
