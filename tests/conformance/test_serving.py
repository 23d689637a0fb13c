from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
from litestar import Litestar

from flowactions_conformance.serving import listen, serve


@pytest.mark.ci
async def test_an_idle_connection_is_kept() -> None:
    """A client that pauses for longer than servers usually wait finds its connection as it was."""
    ports = set[int]()
    limits = httpx.Limits(keepalive_expiry=None)
    async with serve(Litestar()) as url, httpx.AsyncClient(timeout=300, limits=limits) as client:
        for pause in (6, 0):
            answer = await client.get(url)
            assert answer.status_code == 404
            ports.add(answer.extensions["network_stream"].get_extra_info("client_addr")[1])
            await asyncio.sleep(pause)
    assert len(ports) == 1


async def test_an_app_that_cannot_start_is_an_error() -> None:
    """A failing start is not silence."""

    def fail() -> None:
        raise LookupError

    with pytest.raises(RuntimeError, match="did not start"):
        async with asyncio.timeout(300), serve(Litestar(on_startup=[fail])):
            pass


async def test_a_port_can_be_opened_before_the_app_is_made() -> None:
    """The URL is known first, is served as promised, and a taken port is an error."""
    listener = listen()
    port = listener.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        listen(port)
    async with serve(Litestar(), listener) as url, httpx.AsyncClient(timeout=300) as client:
        assert url == f"http://127.0.0.1:{port}"
        assert (await client.get(url)).status_code == 404
    assert listener.fileno() == -1


def test_a_missing_server_says_what_to_install() -> None:
    """Without uvicorn, the import names the extras that bring it."""
    code = "import sys; sys.modules['uvicorn'] = None; import flowactions_conformance.serving"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "with its extra 'conformance' (for the kit) or 'demo' (for the demo)" in done.stderr
