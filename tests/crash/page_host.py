"""Serves a host's pages in a process of its own, where whoever calls is an operator; prints its URL once it listens."""

from __future__ import annotations

import asyncio
import html
import os
import re
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urljoin

import httpx

from flowactions_conformance.serving import NO_TLS, serve
from flowactions_hookspecs import FlowActions, Node, Operator, Request
from tests.crash.forking import fork
from tests.crash.hosts import TimedHost
from tests.support import a_walk

ROOT = "/integrations/webhooks"
RUN = "/run"


class OperatedHost(TimedHost):
    """A host whose operator calls."""

    async def operator(self, request: Request) -> Operator | None:
        return Operator(user_id="olive", user_name="Olive", may_change=False)


class Page(NamedTuple):
    """What a reader has of a page: its text in one line, and where its links lead."""

    text: str
    links: list[str]


class Pages:
    """A reader of the pages of a host.

    Args:
        url: of the host.
    """

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(base_url=url, timeout=300, verify=NO_TLS)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> httpx.Response:
        """Get something of the host."""
        return await self._client.get(path)

    async def post(self, path: str, headers: Mapping[str, str]) -> int:
        """Post a JSON object to the host; give the status of the answer."""
        return (await self._client.post(path, json={}, headers=headers)).status_code

    async def open(self, path: str = ROOT) -> Page:
        """Open a page; give what is in its main part."""
        answer = await self.get(path)
        main = answer.text.partition("<main ")[2].partition(">")[2]
        words = html.unescape(" ".join(re.sub(r"<[^>]*>", " ", main.replace("<wbr>", "")).split()))
        links = re.findall(r'<a [^>]*href="([^"]+)"', main)
        return Page(words, [urljoin(str(answer.url), html.unescape(each)) for each in links])


@asynccontextmanager
async def pages_of(settings: Mapping[str, str]) -> AsyncIterator[Pages]:
    """Run a host in a process of its own, and give a reader of its pages."""
    process = await fork("tests.crash.page_host", environment={**os.environ, **settings})
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        pages = Pages((await process.stdout.readline()).decode().strip())
        try:
            yield pages
        finally:
            await pages.aclose()
    finally:
        process.terminate()
        await process.wait()
        process.stdin.close()


def _flows(actions: FlowActions) -> Any:
    """Make the host's own app: at `RUN`, a flow reaches a webhook node."""

    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["path"] == RUN:
            config = {"webhookUrl": "http://127.0.0.1:9/hook"}
            await actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return app


async def main() -> None:
    """Serve until the process is asked to end."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    actions = FlowActions.load(OperatedHost(os.environ))
    async with serve(actions.wrap(_flows(actions))) as url:
        print(url, flush=True)  # noqa: T201  for the test
        await stopped.wait()


if __name__ == "__main__":
    asyncio.run(main())
