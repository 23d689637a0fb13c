"""What a process imports decides how fast it starts and how much memory it keeps, so each kind has a list of what it may."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from flowactions_hookspecs import FlowActions, Node
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[2]
OWN = {"flowactions_hookspecs", "flowactions_plugin", "flowactions_conformance"}

CONTRACT = {"msgspec", "pluggy", "typing_extensions"}
"""What the contract may import."""

TRANSPORT = {"httptools", "uvloop"}
"""What sends requests."""

COMMAND_LINE = {"click"}
"""What declares the commands."""

WORKER = {*CONTRACT, *TRANSPORT, *COMMAND_LINE, "greenlet", "idna", "opentelemetry", "sqlalchemy"}
DRIVERS = {"sqlite": "aiosqlite", "postgresql": "asyncpg"}

NEVER = (
    "litestar",
    "alembic",
    "aiohttp",
    "yarl",
    "httpx",
    "httpx2",
    "slack_sdk",
    "cryptography",
    "pydantic",
    "mako",
    "rich",
    "multiprocessing",
)
"""None of these is in a list above: the largest, by name, so that lists which grow do not let them in."""

SECRETS = {
    "AUTH_WEBHOOK_SIGNING_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "CHAT_CLIENT_ID": "1.2",
    "CHAT_CLIENT_SECRET": "made up",
    "CHAT_SIGNING_SECRET": "made up",
    "BACKEND_PUBLIC_URL": "http://127.0.0.1:9",
    "FLOWACTIONS_ENCRYPTION_KEYS": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
}
"""Settings of a host that uses everything."""

HOST = """
import json, os, sys
from flowactions_hookspecs import Host

class Bare(Host):
    settings = os.environ

    async def dashboard_principal(self, request):
        return None

    async def node(self, organization_id, flow_id, node_id):
        return None

    async def signing_secret(self, origin):
        return "whsec_made_up"

    async def auth_event(self, event):
        return None

    async def delivery_finished(self, delivery):
        show()

def show():
    print("imported", json.dumps(sorted(sys.modules)), flush=True)
"""


DECLARATIONS = {
    "flowactions_plugin.cli",
    *(f"flowactions_plugin.cli.{name}" for name in ("commands", "frame", "options", "output")),
}
"""The modules that declare commands, and what writes their mistakes."""


@cache
def owners() -> Mapping[str, list[str]]:
    """Give the distributions that a module's top-level name belongs to; the standard library's have none."""
    return packages_distributions()


def run(
    *arguments: str, cwd: Path, settings: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python anew."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(settings or {})}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@cache
def at_once() -> frozenset[str]:
    """Give what the interpreter imports for itself, for example the finder of an editable install."""
    return frozenset(
        json.loads(run("-c", "import json, sys; print(json.dumps([*sys.modules]))", cwd=ROOT).stdout)
    )


def strangers(modules: Iterable[str]) -> set[str]:
    """Give the top-level names of other distributions."""
    return {name.partition(".")[0] for name in set(modules) - at_once()} & owners().keys() - OWN - {"tests"}


def shown(output: str) -> list[str]:
    """Read what `HOST` has shown last."""
    (*_, line) = [line for line in output.splitlines() if line.startswith("imported ")]
    found: list[str] = json.loads(line.removeprefix("imported "))
    return found


def imports(code: str, cwd: Path, **settings: str) -> list[str]:
    """Run statements in a process of its own, and give what is imported at their end."""
    (cwd / "bare.py").write_text(HOST)
    ended = run("-c", f"{code}\nimport bare; bare.show()", cwd=cwd, settings=settings)
    assert ended.returncode == 0, ended.stderr
    return shown(ended.stdout)


def imported_by(
    *arguments: str, cwd: Path, status: int = 0, settings: Mapping[str, str] | None = None
) -> set[str]:
    """Run ``flowactions`` with these arguments, and give what it imports."""
    ended = run("-X", "importtime", "-m", "flowactions_plugin.cli", *arguments, cwd=cwd, settings=settings)
    assert ended.returncode == status, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_no_list_holds_what_must_not_be_imported() -> None:
    """The lists of this module may grow, but not by these."""
    assert not {*WORKER, *DRIVERS.values()} & set(NEVER)
    assert set(NEVER) - {"multiprocessing"} <= owners().keys()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["outbox", "list", "--help"],
        ["worker"],
        ["outbox", "list", "--no-such"],
    ],
    ids=" ".join,
)
def test_help_and_mistakes_import_what_declares_the_commands(arguments: list[str], tmp_path: Path) -> None:
    """No database, web or chat library, none that draws tables, and of the plugin the declarations alone."""
    status = 0 if "--help" in arguments else 2
    modules = imported_by(*arguments, cwd=tmp_path, status=status)
    assert strangers(modules) == COMMAND_LINE
    own = {name for name in modules if name.partition(".")[0] in OWN}
    assert own <= {"flowactions_plugin", "flowactions_plugin.log_text", *DECLARATIONS}
    assert "asyncio" not in modules


def test_completion_imports_what_declares_the_commands(tmp_path: Path) -> None:
    """A shell asks at each key."""
    asked = {"_FLOWACTIONS_COMPLETE": "bash_complete", "COMP_WORDS": "flowactions outbox re", "COMP_CWORD": "2"}
    ended = run("-X", "importtime", "-m", "flowactions_plugin.cli", cwd=tmp_path, settings=asked)
    assert ended.stdout.split() == ["plain,resend", "plain,retry"]
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    assert strangers(line.rpartition("|")[2].strip() for line in lines) == COMMAND_LINE


@pytest.mark.ci
@pytest.mark.parametrize("command", ["migrate", "reseal"])
def test_a_command_without_anything_to_do_imports_what_a_worker_does(
    sqlite_url: str, command: str, tmp_path: Path
) -> None:
    """Alembic comes when there is a revision to run, and what encrypts with the first token."""
    settings = {**development(sqlite_url), **SECRETS}
    assert "alembic.command" in imported_by("migrate", cwd=tmp_path, settings=settings)
    found = imported_by(command, cwd=tmp_path, settings=settings)
    assert strangers(found) <= {*WORKER, DRIVERS["sqlite"]}


def test_the_contract_imports_no_framework(tmp_path: Path) -> None:
    """A host's module that imports the contract, and a plugin's that implements hooks, get two small libraries with it."""
    found = imports("import flowactions_hookspecs, flowactions_hookspecs.spec", tmp_path)
    assert strangers(found) <= CONTRACT
    assert "multiprocessing" not in found


def test_all_names_of_the_contract_can_be_imported(tmp_path: Path) -> None:
    """What needs the web framework is imported with its name, alone or with a star."""
    code = "from flowactions_hookspecs import OPENAPI_COMPONENTS\nassert OPENAPI_COMPONENTS.security_schemes"
    assert "litestar" in imports(code, tmp_path)
    assert "litestar" in imports(
        "from flowactions_hookspecs import *\nOPENAPI_COMPONENTS, FlowActions", tmp_path
    )


OPENED = """
import asyncio
import bare
from flowactions_hookspecs import FlowActions

actions = FlowActions.load(bare.Bare())

async def main():
    async with actions.lifespan(tasks={tasks}):
        await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.ci
def test_a_process_that_serves_no_routes_imports_no_framework(tmp_path: Path) -> None:
    """Schedulers, queue workers and management commands of a host, too; its tables are there."""
    settings = {**development(f"sqlite:///{tmp_path}/f.db"), **SECRETS}
    assert run("-m", "flowactions_plugin.cli", "migrate", cwd=tmp_path, settings=settings).returncode == 0
    found = imports(OPENED.format(tasks=True), tmp_path, **settings)
    assert strangers(found) <= {*WORKER, "aiosqlite"}


@pytest.mark.ci
def test_routes_bring_the_framework_alone(tmp_path: Path) -> None:
    """Whatever is set: what encrypts and what calls the chat provider comes with the first token and the first call."""
    settings = {**development(f"sqlite:///{tmp_path}/f.db"), **SECRETS}
    code = OPENED.format(tasks=False).replace("async def", "actions.route_handlers\nasync def", 1)
    found = strangers(imports(code, tmp_path, **settings))
    assert "litestar" in found
    assert not {"slack_sdk", "cryptography"} & found


async def _worker_that_delivered(settings: Mapping[str, str], cwd: Path, wanted: int) -> str:
    """Run ``flowactions worker`` until it has told its host of so many deliveries; give its output."""
    (cwd / "bare.py").write_text(HOST)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flowactions_plugin.cli", "worker", "--host", "bare:Bare"),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **settings},
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    lines: list[str] = []
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SAFETY_SECONDS):
            while len(lines) < wanted:
                lines.append((await process.stdout.readline()).decode())
                assert not process.stdout.at_eof()
            process.terminate()
            lines.append((await process.stdout.read()).decode())
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return "".join(lines)


@pytest.mark.ci
@pytest.mark.parametrize("delivery", ["continuous", "scheduled"])
async def test_a_worker_imports_what_it_delivers_with(database_url: str, delivery: str, tmp_path: Path) -> None:
    """No web framework, no migrations, no second HTTP client, and of chat and signed events nothing while there are none."""
    settings: dict[str, Any] = development(
        database_url, **SECRETS, FLOWACTIONS_HOST_WORKER="off", FLOWACTIONS_DELIVERY=delivery
    )
    actions = FlowActions.load(SmallHost(settings))
    async with recorder() as receiver, actions.lifespan():
        for _ in range(2):
            await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": receiver.url}))
        output = await _worker_that_delivered(settings, tmp_path, 2)
        assert len(receiver.requests) == 2
    found = shown(output)
    driver = DRIVERS[database_url.partition(":")[0]]
    assert driver in found
    assert strangers(found) <= {*WORKER, driver}
    assert not any(name.startswith("opentelemetry.sdk") for name in found)
    assert "multiprocessing" not in found
