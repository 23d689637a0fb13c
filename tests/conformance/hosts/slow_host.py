"""The reference host, but every method of the host and of its driver takes 300 ms longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

from flowactions_conformance import Env, HostDriver
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import Host

DELAY_SECONDS = 0.3


def _slow(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def later(*arguments: Any, **named: Any) -> Any:
        await asyncio.sleep(DELAY_SECONDS)
        return await method(*arguments, **named)

    return later


def slow_down(driver: Any, host: Host) -> None:
    """Delays all async methods that the host provides, and those of the driver."""
    for name in vars(Host):
        if name in vars(type(host)) and asyncio.iscoroutinefunction(getattr(host, name)):
            setattr(host, name, _slow(getattr(host, name)))
    for name, method in vars(HostDriver).items():
        if asyncio.iscoroutinefunction(method):
            setattr(driver, name, _slow(getattr(driver, name)))


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[ReferenceDriver]:
    """Makes the host."""
    made = create_app(env.settings, env.database_url)
    driver = ReferenceDriver(made, env)
    slow_down(driver, made.host)
    yield driver
