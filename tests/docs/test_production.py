"""The way from the tutorial to production, followed literally with the tutorial's host: databases and signals are real."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import httpx
import pytest
from sqlalchemy.engine import make_url

from tests.docs.environments import variables
from tests.docs.fences import ROOT, Block, blocks_of
from tests.loopback import held_port
from tests.waiting import SAFETY_SECONDS, until

pytestmark = pytest.mark.ci

PAGE = ROOT / "docs" / "how-to" / "production.md"
TUTORIAL = ROOT / "docs" / "tutorials" / "fastapi-host.md"
ENDS = "pip wheel"
"""Is in the first block behind the list: images are tried elsewhere."""

ROLES = {"flowactions_owner": "production_owner", "flowactions_app": "production_app"}
"""Roles belong to the server."""


URL = re.compile(r"postgresql://(?P<role>\w+):(?P<password>[\w-]+)@db\.example\.com[^'\s]*")
"""Of the page's server."""


def as_role(url: str, role: tuple[str, str]) -> str:
    """Give the URL of a database for a role."""
    named = make_url(url).set(username=role[0], password=role[1])
    return named.render_as_string(hide_password=False)


async def run_sql(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=SAFETY_SECONDS)
    try:
        await connection.execute(statements)
    finally:
        await connection.close()


class Reader:
    """Somebody who follows the page, in the folder that the tutorial has left."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.admin = url
        programs = Path(sys.executable).parent
        self.environment = {**variables(), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
        for block in blocks_of(TUTORIAL):
            for name in block.words:
                if name.endswith(".py"):
                    (folder / name).write_text(block.text)
        self.types("flowactions keygen --signing > secret")

    def read(self, text: str) -> str:
        """Put the test's own server and roles into a text of the page."""
        for name, other in ROLES.items():
            text = text.replace(name, other)
        return URL.sub(lambda found: as_role(self.admin, (found["role"], found["password"])), text)

    def types(self, text: str) -> str:
        """Run lines in the reader's shell, which remembers what it exports; return what they write."""
        done = subprocess.run(
            ["bash", "-ec", f"{text}\nenv -0 > .environment"],  # noqa: S607  whichever the reader has
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SAFETY_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        pairs = (self.folder / ".environment").read_text().split("\0")[:-1]
        self.environment = dict(pair.split("=", 1) for pair in pairs)
        return done.stdout

    async def follows(self, block: Block, number: int) -> str:
        """Do what a block says; return what a command writes."""
        text = self.read(block.text)
        if block.language == "sql":  # the first as an administrator, the second as the owner of the tables
            await run_sql(self.environment["FLOWACTIONS_DATABASE_URL"] if number else self.admin, text)
            return ""
        if block.language == "python":
            (self.folder / "settings.py").write_text(text)
            return ""
        return self.types(text)

    def starts(self, *command: str) -> subprocess.Popen[str]:
        """Start a program that goes on."""
        with (self.folder / f"{command[0]}.log").open("w") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=log, stderr=log, text=True
            )


async def test_the_page_is_followed(postgres_url: str, tmp_path: Path) -> None:
    """Two roles, of which one may change no table, settings, a key, the check, a worker, and the web app; an inner address is refused."""
    blocks = blocks_of(PAGE)
    blocks = blocks[: next(at for at, block in enumerate(blocks) if ENDS in block.text)]
    empty = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;"
    await run_sql(postgres_url, empty)
    reader = Reader(tmp_path, postgres_url)
    worker = None
    checked = ""
    number = 0
    try:
        for block in blocks:
            if block.text.startswith("flowactions worker "):
                worker = reader.starts(*block.text.split())
                continue
            if block.text.startswith("flowactions status"):
                await until(lambda: "alive" in reader.types("flowactions status || true"))
            written = await reader.follows(block, number)
            number += block.language == "sql"
            checked += written if "doctor" in block.text else ""
        for line in ("database", "migrations", "writing", "clock"):
            # A busy machine's database is slow, which is a warning.
            found = [each.split()[0] for each in checked.splitlines() if each.split()[1:2] == [line]]
            assert found in (["ok"], ["warning"]), checked
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await run_sql(
                reader.environment["FLOWACTIONS_DATABASE_URL"],
                "ALTER TABLE flowactions_outbox ADD COLUMN x text",
            )
        assert await answer_of_the_app(reader) == ["shop: blocked_url", "team: not_connected"]
        assert worker is not None
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(SAFETY_SECONDS) == 0
    finally:
        if worker is not None and worker.poll() is None:
            worker.kill()
            worker.wait()
        drop = "".join(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name};" for name in reversed(ROLES.values()))
        await run_sql(postgres_url, drop)


async def answer_of_the_app(reader: Reader) -> list[str]:
    """Start the tutorial's web app with the settings of the page, and run its flow once."""
    with held_port() as port:
        app = reader.starts("uvicorn", "app:app", "--port", str(port))
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SAFETY_SECONDS) as client:

                async def answers() -> bool:
                    try:
                        return (await client.get("/dashboard")).status_code == 200
                    except httpx.ConnectError:
                        return False

                await until(answers)
                ran = await client.post("/flows/welcome", params={"user": "grace", "said": "Hello"})
                said: list[str] = ran.json()
                return said
        finally:
            app.terminate()
            app.wait(SAFETY_SECONDS)
