from __future__ import annotations

import asyncio

import httpx
import pytest
from litestar import Litestar

from flowactions_conformance.serving import serve


async def test_an_app_is_served_with_its_lifespan_until_the_block_ends() -> None:
    """The app starts before requests come, and stops with the block."""
    events: list[str] = []
    app = Litestar(on_startup=[lambda: events.append("up")], on_shutdown=[lambda: events.append("down")])
    async with serve(app) as url, httpx.AsyncClient() as client:
        assert (await client.get(url)).status_code == 404
        assert events == ["up"]
    assert events == ["up", "down"]
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_an_app_that_cannot_start_is_an_error() -> None:
    """A failing start is not silence."""

    def fail() -> None:
        raise LookupError

    with pytest.raises(RuntimeError, match="did not start"):
        async with asyncio.timeout(5), serve(Litestar(on_startup=[fail])):
            pass
