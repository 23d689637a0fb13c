"""Engines that people already use, as hosts: LangGraph in an environment of its own, and what `init` writes for each engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowactions_conformance.__main__ import main
from flowactions_conformance.commands.init import NO_ENGINE, engines, files_of
from flowactions_conformance.serving import listen
from tests.conformance.engines import lines_of, python_of, run
from tests.conformance.hosts.small_host import outbox
from tests.docs.environments import INSTALL, shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import follow, pip_lines
from tests.waiting import until

GUIDE = ROOT / "docs" / "how-to" / "use-with-langgraph.md"
HOST = "tests.conformance.hosts.langgraph"


@pytest.fixture(scope="module")
def python(store: Path) -> Path:
    """The Python of an environment with LangGraph."""
    return python_of("langgraph", store)


@pytest.mark.ci
def test_its_guide_can_be_followed(tmp_path: Path, store: Path) -> None:
    """Literally, in an empty folder."""
    follow(GUIDE, tmp_path, store)


@pytest.mark.ci
async def test_its_own_server_runs_the_graph(tmp_path: Path, store: Path) -> None:
    """As the guide says: the graph and an app with the plugin, each loaded from the same file, beside the guide's modules."""
    server, *_ = [each.text for each in blocks_of(GUIDE) if "langgraph-cli" in each.text]
    install, start = server.splitlines()
    programs = shared([*pip_lines(blocks_of(GUIDE)), install], store) / "bin"
    for block in blocks_of(GUIDE):
        if block.language in {"python", "json"}:
            (tmp_path / block.words[0]).write_text(block.text)
    (tmp_path / "glue.py").write_text(files_of("langgraph")["glue.py"])
    (tmp_path / "secret").write_text("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
    with listen() as listener:
        port = str(listener.getsockname()[1])
    process = await asyncio.create_subprocess_exec(
        *(f"{programs}/langgraph", *start.split()[1:], "--no-reload", "--port", port),
        cwd=tmp_path,
        env={**variables(), "PATH": f"{programs}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=300
        ) as client:
            await until(partial(answers, client))
            thread = (await client.post("/threads", json={})).json()["thread_id"]
            for given in ({"input": {"said": "Hello"}}, {"command": {"resume": "Well"}}):
                run = {"assistant_id": "welcome", "config": {"configurable": {"user": "grace"}}, **given}
                state = (await client.post(f"/threads/{thread}/runs/wait", json=run)).json()
            assert state["said"] == "Well"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    sent = [(node, json.loads(body)) for node, _, body in outbox(tmp_path, "flowactions.db")]
    assert sent == [
        ("ordered", {"user": "grace", "said": "Hello"}),
        ("answered", {"user": "grace", "said": "Well"}),
    ]


async def answers(client: httpx.AsyncClient) -> bool:
    """Return whether the plugin answers in a server."""
    try:
        return (await client.get("/integrations/health/ready")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.ci
def test_what_it_runs_again_has_one_event_id(python: Path, tmp_path: Path) -> None:
    """After a kill before the checkpoint, a retry, a resume and time travel: the same event again, or, if it waits, nothing.

    Input on a thread that has ended is another passage, and so another event.
    """
    done = run(python, f"{HOST}.repeated", str(tmp_path), within=tmp_path)
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    assert {name: (len(ids), len(set(ids))) for name, ids in sent.items()} == {
        "at-once": (4, 2),
        "retried": (4, 2),
        "before-the-step": (2, 2),
        "beside-the-interrupt": (5, 2),
        "at-the-end": (1, 1),
    }


@pytest.fixture(scope="module")
def sent(
    python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[tuple[str, str, str]]]]:
    """What the three flows of `flows` have left in the outbox, when they were run once and again."""
    folder = tmp_path_factory.mktemp("flows")
    done = run(python, f"{HOST}.flows", str(folder), within=folder)
    assert done.returncode == 0, done.stderr
    rows: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return rows


@pytest.mark.ci
@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        (
            "agent",
            [
                ("tool_used", "used search"),
                ("tool_used", "used calculator"),
                ("answered", "the answer"),
                ("tool_used", "used search"),
                ("answered", "the answer"),
                ("published", "the answer"),
            ],
        ),
        (
            "map_reduce",
            [
                ("written", "stars"),
                ("written", "moons"),
                ("written", "suns"),
                ("joined", "about stars, about moons, about suns"),
            ],
        ),
        (
            "supervisor",
            [
                ("research_done", "research after nothing"),
                ("write_done", "write after research after nothing"),
                ("research_done", "research after write after research after nothing"),
            ],
        ),
    ],
)
def test_flows_of_its_kind_run_with_action_nodes(
    flow: str, expected: list[tuple[str, str]], sent: dict[str, dict[str, list[tuple[str, str, str]]]]
) -> None:
    """Each passage is an event of its own, with what the graph's state has then; run again, it is the same event."""
    rows = sent[flow]["once"]
    # Branches that run side by side have no order.
    assert Counter((node, json.loads(body)["said"]) for node, _, body in rows) == Counter(expected)
    assert len({event for _, event, _ in rows}) == len(rows)
    again = [row for row in rows if row[0] not in {"answered", "published"}]
    assert sorted(sent[flow]["again"]) == sorted(again)


class TestInit:
    """``init --engine``."""

    @pytest.mark.parametrize("engine", engines())
    def test_it_writes_modules_that_need_nothing_of_the_kit_but_its_api(
        self, engine: str, tmp_path: Path
    ) -> None:
        """Modules that are written side by side import each other by the names of their files."""
        assert main(["init", "--engine", engine, str(tmp_path / "host")]) == 0
        written = {each.name: each.read_text() for each in (tmp_path / "host").iterdir()}
        assert written == files_of(engine)
        for name, text in written.items():
            if name.endswith(".py"):
                compile(text, name, "exec")
            assert "flowactions_conformance." not in text
            assert "MODULE:" not in text

    def test_the_example_is_written_as_it_is_proved(self) -> None:
        """The glue that a guide copies is among its files, and the test is the same for all."""
        tests = set()
        for engine in engines():
            folder = ROOT / "docs" / "examples" / engine
            written = files_of(engine)
            assert {name: written[name] for name in written if (folder / name).exists()} == {
                each.name: each.read_text() for each in folder.iterdir() if each.is_file()
            }
            assert engine == NO_ENGINE or "glue.py" in written
            tests.add(written["test_host.py"])
        assert len(tests) == 1

    @pytest.mark.ci
    def test_the_modules_are_typed(self, tmp_path: Path) -> None:
        """As strictly as this project's: those of an engine are no part of its packages."""
        config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache")]
        environment = {**os.environ, "MYPYPATH": f"{ROOT / 'hookspecs'}:{ROOT / 'conformance'}"}
        for engine in engines():
            folder = tmp_path / engine
            assert main(["init", "--engine", engine, str(folder)]) == 0
            command = [sys.executable, "-m", "mypy", *config, *(each.name for each in folder.glob("*.py"))]
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, check=False, env=environment
            )
            assert done.returncode == 0, (engine, done.stdout)

    def test_nothing_is_overwritten(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Not even the other files are written then."""
        (tmp_path / "test_host.py").write_text("mine")
        assert main(["init", "--engine", NO_ENGINE, str(tmp_path)]) == 2
        assert [each.name for each in tmp_path.iterdir()] == ["test_host.py"]
        assert "test_host.py exists, and nothing is written" in capsys.readouterr().err

    @pytest.mark.parametrize("engine", engines())
    @pytest.mark.ci
    def test_what_it_writes_is_proved(self, engine: str, tmp_path: Path, store: Path) -> None:
        """By its own tests, where its requirements are installed: all checks of what it claims."""
        assert main(["init", "--engine", engine, str(tmp_path)]) == 0
        lines = [INSTALL, ".venv/bin/pip install --quiet pytest"] if engine == NO_ENGINE else lines_of(engine)
        requirements = (tmp_path / "requirements.txt").read_text().split()
        assert set(requirements) <= {word for line in lines for word in line.split()}
        python = shared(lines, store) / "bin" / "python"
        done = run(python, "pytest", "-q", within=tmp_path, clone=None)
        assert done.returncode == 0, done.stdout
        assert " passed" in done.stdout


def test_the_wheel_needs_no_engine() -> None:
    """The kit imports none of them, and lists them all the same."""
    listed = "from flowactions_conformance.commands.init import engines, files_of; [files_of(each) for each in engines()]"
    code = f"import sys; {listed}; print([name for name in ('langgraph', 'SpiffWorkflow', 'dbos') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"langgraph", NO_ENGINE} <= set(engines())
