from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowActions, Node
from tests.commanding import command
from tests.docs.fences import ROOT, blocks_of
from tests.support import SmallHost, a_walk, development
from tests.waiting import SAFETY_SECONDS

PAGE = ROOT / "docs" / "how-to" / "production.md"
OWNER, APP = ("flowactions_owner", "change-me"), ("flowactions_app", "change-me-too")


def as_role(url: str, role: tuple[str, str]) -> str:
    """Give the URL of a database for a role."""
    named = make_url(url).set(username=role[0], password=role[1])
    return named.render_as_string(hide_password=False)


async def run(url: str, statements: str) -> None:
    connection = await asyncpg.connect(url, timeout=SAFETY_SECONDS)
    try:
        await connection.execute(statements)
    finally:
        await connection.close()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
async def test_two_roles_are_enough(database_url: str, tmp_path: Path) -> None:
    """With the page's statements, one role migrates, and a host of the other enqueues; it may not change a table."""
    roles, rights = [block.text for block in blocks_of(PAGE) if block.language == "sql"]
    drop = "".join(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name};" for name, _ in (APP, OWNER))
    empty = "DROP SCHEMA public CASCADE; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;"
    await run(database_url, empty + roles)
    try:
        settings = {"FLOWACTIONS_DATABASE_URL": as_role(database_url, OWNER)}
        migrated = await command("migrate", cwd=tmp_path, **settings)
        assert migrated.code == 0, migrated.err
        await run(as_role(database_url, OWNER), rights)
        app = as_role(database_url, APP)
        checked = await command("migrate", "--check", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=app)
        assert checked.code == 0, checked.err
        actions = FlowActions.load(SmallHost(development(app)))
        async with actions.lifespan(tasks=False):
            result = await actions.reach(
                a_walk(), Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/"})
            )
        assert result.status == "queued"
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await run(app, "ALTER TABLE flowactions_outbox ADD COLUMN another text")
        doctor = await command("doctor", cwd=tmp_path, FLOWACTIONS_DATABASE_URL=app)
        for line in ("database", "migrations", "writing", "clock"):
            # A busy machine's database is slow, which is a warning.
            found = [each.split()[0] for each in doctor.out.splitlines() if each.split()[1:2] == [line]]
            assert found in (["ok"], ["warning"]), doctor.out
    finally:
        await run(database_url, drop)
