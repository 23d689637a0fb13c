"""The reference host for a server of your choice, and its driver: the conformance kit over a host that is already served.

``uvicorn --factory flowactions_conformance.reference_host.served:make_app``, in the environment that `serve-env` prints.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from litestar import Litestar

from flowactions_conformance.kit.under_test import Env
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.store import Store
from flowactions_conformance.reference_host.testing import ServedDriver
from flowactions_conformance.variables import DATABASE


def make_app() -> Litestar:
    """Make the app, with the settings and the database of the environment."""
    return create_app(os.environ, os.environ[DATABASE]).app


@asynccontextmanager
async def make_driver(env: Env) -> AsyncIterator[ServedDriver]:
    """Make the driver of a reference host that is already served."""
    store = Store(env.database_url)
    async with store.open():
        yield ServedDriver(store, env)
