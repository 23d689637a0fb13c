"""How the plugin is mounted in a Litestar app: its routes beside the host's own, its lifespan inside theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from litestar import Litestar
from litestar.openapi import OpenAPIConfig

from flowactions_conformance.reference_host.api import own_routes
from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.sample import Sample, load_sample
from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.reference_host.walker import Walker
from flowactions_hookspecs import OPENAPI_COMPONENTS, FlowActions


class ReferenceApp(NamedTuple):
    """The app, and what it is made of."""

    app: Litestar
    host: ReferenceHost
    actions: FlowActions
    walker: Walker


def create_app(
    settings: Mapping[str, str],
    database: Path | str,
    *,
    sample: Sample | None = None,
    plugins: Iterable[object] = (),
) -> ReferenceApp:
    """Make the reference host.

    Args:
        settings: the plugin's settings.
        database: a SQLite file, or the URL of a database in the form of SQLAlchemy's asyncio drivers. The plugin
            shares it.
        sample: sample data to write at start.
        plugins: further plugins that are not installed.
    """
    url = f"sqlite+aiosqlite:///{database}" if isinstance(database, Path) else database
    host = ReferenceHost(settings, Store(url))
    actions = FlowActions.load(host, plugins=plugins)
    walker = Walker(host.store, actions)

    @asynccontextmanager
    async def own_lifespan(_: Litestar) -> AsyncIterator[None]:
        async with host.store.open():
            if sample is not None:
                await load_sample(host.store, sample)
            yield

    app = Litestar(
        route_handlers=[*own_routes(host, actions, walker), *actions.route_handlers],
        lifespan=[own_lifespan, actions.lifespan],
        openapi_config=OpenAPIConfig(title="Reference host", version="1", components=OPENAPI_COMPONENTS),
        logging_config=None,
    )
    return ReferenceApp(app, host, actions, walker)
