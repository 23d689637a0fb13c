"""Serves a wrapped host in a process of its own: prints the URL once it listens, and what its lifespans note."""

from __future__ import annotations

import logging
import socket
import sys
from contextlib import suppress
from pathlib import Path

import uvicorn

from flowactions_conformance.serving import listen, url_of
from tests.contract.wrap.bare_host import bare
from tests.contract.wrap.django_host import django_host
from tests.contract.wrap.probe import Probe, loaded
from tests.contract.wrap.quart_host import quart
from tests.contract.wrap.starlette_hosts import fastapi, starlette

HOSTS = {"fastapi": fastapi, "starlette": starlette, "quart": quart, "bare": bare, "django": django_host}


class _Printed(list[str]):
    """Prints what is noted at once; the server ends with the signal that stopped it."""

    def append(self, item: str) -> None:
        print(item, flush=True)  # noqa: T201  for the test


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(url_of(listener), flush=True)  # noqa: T201  for the test


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    events = _Printed()
    app = HOSTS[sys.argv[1]](loaded(Path(sys.argv[2]), Probe(events)).wrap, events)
    listener = listen()
    with suppress(KeyboardInterrupt):
        _Server(uvicorn.Config(app, log_config=None)).run(sockets=[listener])
