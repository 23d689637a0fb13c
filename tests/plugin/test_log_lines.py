"""Ids of hosts stand in log lines; whatever they hold, a line stays one line."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.loggers import NAMES
from tests.chatting import ChatHost, chat_host, refusing
from tests.commanding import ROOT
from tests.host_apps import AUTH_SECRET
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import until

FORGED = "n\nERROR flowactions: all is lost\r\x85\u2028"


async def test_an_id_cannot_forge_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a node that is skipped, one that no plugin offers, one that is not sent, and a step that is out of reach."""
    caplog.set_level(logging.DEBUG, "flowactions")
    actions = FlowActions.load(SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}")))
    async with actions.lifespan():
        caplog.clear()
        for kind in ("webhook", "chat_message", "nobody's"):
            await actions.reach(a_walk(run_id=FORGED), Node(id=FORGED, type=kind))
        (tmp_path / "f.db").unlink()
        await actions.advance(a_walk(run_id=FORGED), FORGED)
    written = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(written) >= 4
    assert [line for line in written if "all is lost" in line and len(line.splitlines()) != 1] == []
    assert sum("all is lost" in line for line in written) >= 3


class Broken(logging.Handler):
    """A handler of the host's that fails, as those that send lines over the network do."""

    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the log cannot be written")


def refuse(_: logging.LogRecord) -> bool:
    raise RuntimeError("the filter is broken")


def marked(*arguments: Any, **named: Any) -> logging.LogRecord:
    """Make records that have an attribute of the name of one of ours."""
    record = logging.LogRecord(*arguments, **named)
    record.event = "the host's"
    return record


@contextmanager
def broken_handler() -> Iterator[None]:
    root, handler = logging.getLogger(), Broken()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


@contextmanager
def broken_filter() -> Iterator[None]:
    """On each of the plugin's loggers, as `logging.config` puts them."""
    loggers = [logging.getLogger(name) for name in NAMES]
    for logger in loggers:
        logger.addFilter(refuse)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(refuse)


@contextmanager
def broken_records() -> Iterator[None]:
    factory = logging.getLogRecordFactory()
    logging.setLogRecordFactory(marked)
    try:
        yield
    finally:
        logging.setLogRecordFactory(factory)


BROKEN = [broken_handler, broken_filter, broken_records]


@pytest.mark.parametrize("broken", BROKEN)
async def test_a_log_of_the_hosts_that_fails_makes_nothing_else_fail(
    broken: Callable[[], AbstractContextManager[None]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Chat and webhook nodes, deliveries that end in each way, routes, events and an outage: all are as with a log that works."""
    caplog.set_level(logging.DEBUG, "flowactions")
    caplog.set_level(logging.WARNING, "httpx")  # the test's own client, which is not protected
    results: list[list[Any]] = []
    for number, around in enumerate((nullcontext, broken)):
        async with chat_host(
            f"sqlite:///{tmp_path / str(number)}.db",
            AUTH_WEBHOOK_SIGNING_SECRET=AUTH_SECRET,
            FLOWACTIONS_TICK_SECONDS="0.05",
        ) as run:
            await run.connect()
            with around():
                results.append(await walk_through(run))
    assert results[0] == results[1]
    assert {record.name for record in caplog.records if record.name.startswith("flowactions")} <= set(NAMES)
    assert broken is broken_records or "RuntimeError: the" in capsys.readouterr().err


async def walk_through(run: ChatHost) -> list[Any]:
    """Have the plugin log in each of its rooms; give all results."""
    results = [await run.message(), await run.message(chatChannelId=""), await run.message("globex")]
    run.provider.faults["chat.postMessage"] = deque([refusing("not_in_channel")])
    results.append(await run.message())
    configs: list[dict[str, Any]] = [
        {},
        *({"webhookUrl": f"http://{name}/"} for name in ("127.0.0.1:9", "169.254.169.254")),
    ]
    nodes = [Node(id="n", type="webhook", config=config) for config in configs]
    for node in (*nodes, Node(id="n", type="nobody's")):
        results.append(await run.actions.reach(a_walk(), node))  # noqa: PERF401  one after the other
    found: list[Any] = [(each.status, each.reason, each.halt) for each in results]
    database = services_of(run.host)._database

    async def has_ended() -> bool:
        async with database.read() as connection:
            dead = await connection.exec_driver_sql("SELECT id FROM flowactions_outbox WHERE status = 'dead'")
            return dead.first() is not None

    await until(has_ended)
    for path in ("/integrations/chat/events", "/webhooks/auth", "/v1/webhooks/outbox?limit=x"):
        found += [(await run.browser.post(path, content=b"{}")).status_code]
    run.host.principal = "nobody of the contract's"  # type: ignore[assignment]
    found.append((await run.browser.get("/v1/webhooks/outbox")).status_code)
    return found


MIGRATING_HOST = """
import asyncio, logging, sys
from alembic import command
from alembic.config import Config
from flowactions_hookspecs import FlowActions, Node
from tests.support import SmallHost, a_walk, development

def migrate():
    command.upgrade(config, "head")
    assert theirs.disabled, "Alembic does not disable loggers any more"

async def main():
    actions = FlowActions.load(SmallHost(development("sqlite:///f.db")))
    if sys.argv[1] == "before":
        migrate()
    async with actions.lifespan():
        if sys.argv[1] == "after":
            migrate()
        await actions.reach(a_walk(), Node(id="of the walk", type="webhook", config={}))
        logging.getLogger("flowactions.outbox").error("of a child")

logging.getLogger("flowactions").setLevel("INFO")  # as the page says: Alembic's template has WARNING for all
theirs = logging.getLogger("theirs")
config = Config("alembic.ini")
command.init(config, "migrations")
config.set_main_option("sqlalchemy.url", "sqlite:///host.db")
asyncio.run(main())
"""


@pytest.mark.ci
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_host_that_runs_alembic_keeps_the_lines(tmp_path: Path, when: str) -> None:
    """Alembic's own template disables all loggers that exist, before the plugin starts or after it (§6.3)."""
    ended = subprocess.run(
        [sys.executable, "-c", MIGRATING_HOST, when],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ("created the tables" in ended.stderr) == (when == "before")
    assert "of the walk" in ended.stderr
    assert "of a child" in ended.stderr
