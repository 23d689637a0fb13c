"""Deferred nodes of a second author's installed plugin, under processes that race and are killed at each point (§3.2)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from flowactions_hookspecs import Deferred, FlowActions, Node
from flowactions_plugin.settings.model import read_settings
from tests.crash.actors import actors, advance_and_die
from tests.packaging.wheels import install_crm
from tests.recorder import Recorder, recorder
from tests.support import SmallHost, a_walk
from tests.waiting import until

pytestmark = pytest.mark.ci

KINDS = ("crm_upsert", "webhook", "crm_note", "chat_message", "crm_contact")
"""No workspace is connected here: a chat message fails, and the flow goes on."""


class TellingHost(SmallHost):
    """A host that keeps what recovery tells it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.recovered: list[tuple[str, str | None, str, list[str]]] = []

    async def nodes_recovered(self, walk: Any, step_id: str | None, advanced: Any) -> None:
        ran = [result.node_id for result in advanced.results]
        self.recovered.append((walk.run_id, step_id, advanced.state, ran))


class Installed:
    """A database whose processes have the CRM's plugin installed, and the CRM."""

    def __init__(
        self, settings: dict[str, str], engine: AsyncEngine, crm: Recorder, actions: FlowActions
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.crm = crm
        self.actions = actions

    async def record(self, *kinds: str) -> dict[str, str]:
        """Let a new run reach nodes of these kinds before step s; give what names the run."""
        walk = a_walk(pacing=Deferred("s"))
        configs = {"webhook": {"webhookUrl": "http://127.0.0.1:9/"}, "crm_upsert": {"list": "leads"}}
        for kind in kinds:
            result = await self.actions.reach(walk, Node(id=kind, type=kind, config=configs.get(kind, {})))
            assert result.status == "recorded"
        return {"run_id": walk.run_id}

    async def query(self, statement: str) -> list[Any]:
        async with self.engine.connect() as connection:
            return list((await connection.execute(text(statement))).all())

    async def expire(self) -> None:
        async with self.engine.begin() as connection:
            await connection.execute(
                text("UPDATE flowactions_deferred SET held_until = 1 WHERE held_until IS NOT NULL")
            )

    async def upserted(self) -> Counter[str]:
        rows = await self.query("SELECT body FROM flowactions_outbox WHERE event_type = 'crm.contact_upserted'")
        return Counter(json.loads(bytes(row.body))["run"] for row in rows)

    async def contacts(self) -> Counter[str]:
        return Counter(row.run for row in await self.query("SELECT run FROM crm_contacts"))

    def notes(self) -> Counter[str]:
        """Count the calls of nodes, which tell what was said; the outbox's deliveries do not."""
        calls = [json.loads(request.body) for request in self.crm.requests]
        return Counter(call["run"] for call in calls if "said" in call)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the plugin is installed."""
    target = tmp_path_factory.mktemp("installed") / "packages"
    install_crm(target)
    return target


@asynccontextmanager
async def installed(url: str, packages: Path) -> AsyncIterator[Installed]:
    engine = create_async_engine(read_settings({"FLOWACTIONS_DATABASE_URL": url}).database_url)
    async with recorder() as crm:
        settings = {
            "FLOWACTIONS_ENVIRONMENT": "development",
            "FLOWACTIONS_DATABASE_URL": url,
            "FLOWACTIONS_HOST_WORKER": "off",
            "FLOWACTIONS_TEST_PACKAGES": str(packages),
            "FLOWACTIONS_TEST_SHARED": "1",
            "CRM_URL": crm.url,
        }
        with pytest.MonkeyPatch.context() as patched:
            patched.syspath_prepend(str(packages))
            actions = FlowActions.load(SmallHost(settings, database=engine))
            assert "crm" in actions.plugin_names
            async with actions.lifespan():
                yield Installed(settings, engine, crm, actions)
    await engine.dispose()


@pytest.fixture
async def field(database_url: str, packages: Path) -> AsyncIterator[Installed]:
    async with installed(database_url, packages) as made:
        yield made


async def test_killed_at_each_point_nothing_is_lost(field: Installed, packages: Path) -> None:
    """Before and after the lease, in reach, around its request, in write, at the commit, before the answer (kill -9).

    What a transaction holds is there exactly once. A request is made at least once, and twice at the most.
    """
    async with actors(field.settings, 1) as (actor,):
        points = await actor.points(do="advance", walk=await field.record(*KINDS), step="s")
    assert points >= 20
    runs = [await field.record(*KINDS) for _ in range(points)]
    await advance_and_die(field.settings, runs)
    await field.expire()
    worker = TellingHost({**field.settings, "FLOWACTIONS_HOST_WORKER": "on"}, database=field.engine)
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(packages))
        async with FlowActions.load(worker).lifespan():

            async def nobody_waits_for_recovery() -> bool:
                return not await field.query("SELECT 1 FROM flowactions_deferred WHERE held_until IS NOT NULL")

            await until(nobody_waits_for_recovery)
    for walk in runs:  # those that died before they leased anything
        await field.actions.advance(a_walk(**walk), "s")
    assert await field.query("SELECT * FROM flowactions_deferred WHERE ran_at IS NULL") == []
    upserted, contacts, notes = await field.upserted(), await field.contacts(), field.notes()
    for walk in runs:
        assert (upserted[walk["run_id"]], contacts[walk["run_id"]]) == (1, 1)
        assert 1 <= notes[walk["run_id"]] <= 2
    assert len(worker.recovered) >= points // 2
    assert {(step, state) for _, step, state, _ in worker.recovered} == {("s", "done")}
    for _, _, _, ran in worker.recovered:
        assert ran == list(KINDS[-len(ran) :])


async def test_a_process_without_the_plugin_leaves_its_nodes_to_others(field: Installed) -> None:
    """It runs what stands before them, counts nothing, and recovery where the plugin is installed runs the rest in order."""
    walk = await field.record("webhook", "crm_upsert", "crm_contact", "webhook")
    without = {name: value for name, value in field.settings.items() if name != "FLOWACTIONS_TEST_PACKAGES"}
    async with actors(without, 1) as (other,), actors(field.settings, 1) as (owner,):
        for number in range(8):
            answer = await other.ask(do="advance", walk=walk, step="s")
            assert answer == {"ran": ["webhook:queued"] if number == 0 else [], "states": ["done"]}
        assert await field.query("SELECT 1 FROM flowactions_deferred WHERE holds > 0") == []
        answer = await owner.ask(do="advance", walk=walk, step="s")
        assert answer == {"ran": ["crm_upsert:queued", "crm_contact:sent"], "states": ["done"]}
        assert (await other.ask(do="advance", walk=walk, step="s"))["states"] == ["done"]
