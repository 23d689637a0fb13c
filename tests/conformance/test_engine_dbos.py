"""DBOS as a host's engine, in an environment of its own."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from tests.conformance.engines import python_of, run
from tests.docs.fences import ROOT
from tests.docs.tutorials import follow

GUIDE = ROOT / "docs" / "how-to" / "use-with-dbos.md"
HOST = "tests.conformance.hosts.dbos"


@pytest.fixture(scope="module")
def python(store: Path) -> Path:
    """The Python of an environment with DBOS."""
    return python_of("dbos", store)


@contextmanager
def a_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """Have a new database of the PostgreSQL server."""
    server = make_url(request.getfixturevalue("postgres_server")).set(drivername="postgresql")
    name = f"dbos_{token_hex(6)}"

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(server.render_as_string(hide_password=False))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(execute(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        asyncio.run(execute(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.mark.ci
def test_its_guide_can_be_followed(tmp_path: Path, store: Path) -> None:
    """Literally, in an empty folder."""
    follow(GUIDE, tmp_path, store)


@pytest.mark.ci
def test_kills_within_transactions_lose_nothing_and_repeat_nothing(python: Path, tmp_path: Path) -> None:
    """Each workflow has one row of the host's and one in the outbox, wherever its process was killed."""
    workflows, kills = 24, 3
    done = run(python, f"{HOST}.killed", str(tmp_path), str(workflows), str(kills), within=tmp_path)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    each = kills // 3
    assert counted.pop("killed") == {
        "before the node": each,
        "before the commit": each,
        "behind the commit": each,
    }
    assert counted == {name: [workflows, workflows] for name in ("orders", "bodies", "events")}


@pytest.mark.ci
def test_what_it_runs_again(python: Path, tmp_path: Path) -> None:
    """After a kill and a rewind, the same event again, or nothing; a fork is another run."""
    done = run(python, f"{HOST}.repeated", str(tmp_path), within=tmp_path)
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    assert {name: (len(ids), len(set(ids))) for name, ids in sent.items()} == {
        "at-once": (3, 2),
        "outside": (4, 2),
        "before-the-step": (2, 2),
        "at-the-end": (2, 2),
    }


@pytest.mark.ci
def test_it_starts_beside_transactions_of_its_event_loop(
    python: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """DBOS's migrations wait for transactions in the database, and must not keep the event loop from them."""
    with a_database(request) as place:
        done = run(python, f"{HOST}.started", place, within=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "started\n"


@pytest.fixture(scope="module")
def sent(
    python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[tuple[str, str, str]]]]:
    """What the three workflows of `flows` have left in the outbox, when they were run once and again."""
    folder = tmp_path_factory.mktemp("flows")
    done = run(python, f"{HOST}.flows", str(folder), within=folder)
    assert done.returncode == 0, done.stderr
    rows: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return rows


AGENT = [
    ("tool_used", "used search"),
    ("tool_used", "used calculator"),
    ("answered", "the answer"),
    ("tool_used", "used search"),
    ("answered", "the answer"),
    ("published", "the answer"),
]
INDEXED = [("indexed", document) for document in ("stars", "moons", "suns")]
JOINED = ("joined", "about stars, about moons, about suns")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("flow", "expected", "again", "anew"),
    [
        (
            "checkout",
            [("reserved", "tea"), ("dispatched", "tea, 9 left, paid")],
            [("reserved", "tea"), ("dispatched", "tea, 8 left, paid")],
            {"dispatched"},  # its body says what is left
        ),
        ("agent", AGENT, [each for each in AGENT if each[0] == "tool_used"], set()),
        ("fan_out", [*INDEXED, JOINED], [JOINED], set()),  # DBOS has the results of the children
    ],
)
def test_flows_of_its_kind_run_with_action_nodes(
    flow: str,
    expected: list[tuple[str, str]],
    again: list[tuple[str, str]],
    anew: set[str],
    sent: dict[str, dict[str, list[tuple[str, str, str]]]],
) -> None:
    """Each passage is an event of its own; rewound, it is the same event, unless its body is another."""
    rows, repeated = sent[flow]["once"], sent[flow]["again"]

    def said(of: list[tuple[str, str, str]]) -> Counter[tuple[str, str]]:
        return Counter((node, json.loads(body)["said"]) for node, _, body in of)

    assert said(rows) == Counter(expected)
    assert len({event for _, event, _ in rows}) == len(rows)
    assert said(repeated) == Counter(again)
    events = {event for _, event, _ in rows}
    assert {node for node, event, _ in repeated if event not in events} == anew
