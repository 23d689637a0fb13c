"""Imports what programs of tests need, in the process that forks them."""

import gc
import importlib

for name in (
    "aiosqlite",
    "alembic.command",
    "asyncpg",
    "flowactions_conformance",
    "flowactions_conformance.serving",
    "flowactions_plugin.cli",
    "flowactions_plugin.cli.commands",
    "flowactions_plugin.cli.diagnosis",
    "flowactions_plugin.cli.context",
    "flowactions_plugin.egress.host_transport",
    "flowactions_plugin.plugin",
    "jinja2",
    "flowactions_plugin.routes",
    "slack_sdk.web.async_client",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tests.crash.actor",
    "tests.crash.forking",
    "tests.crash.hosts",
):
    importlib.import_module(name)
gc.collect()
gc.freeze()  # or each child's first collection, and its end, would copy what it shares with this process
