"""Engines that people already use, as hosts, each in an environment of its own, and what `init` writes for each."""

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

import httpx
import pytest

from flowactions_conformance.__main__ import main
from flowactions_conformance.commands.init import engines, files_of
from flowactions_hookspecs import FlowActions
from tests.conformance.engines import PACKAGES, guide_of, lines_of, python_of, run
from tests.conformance.hosts.small_host import SmallHost, outbox
from tests.docs.environments import shared, variables
from tests.docs.fences import ROOT, blocks_of
from tests.docs.tutorials import follow, pip_lines
from tests.waiting import until

GUIDE = guide_of("langgraph")
HOSTS = "tests.conformance.hosts"
CONNECTOR = ROOT / "docs" / "examples" / "spiffworkflow"


@pytest.mark.ci
@pytest.mark.parametrize("engine", PACKAGES)
def test_its_guide_can_be_followed(engine: str, tmp_path: Path, store: Path) -> None:
    """Literally, in an empty folder."""
    follow(guide_of(engine), tmp_path, store)


@pytest.mark.long
async def test_its_own_server_runs_the_graph(tmp_path: Path, store: Path, port: int) -> None:
    """As the guide says: the graph and an app with the plugin, each loaded from the same file, beside the guide's modules."""
    server, *_ = [each.text for each in blocks_of(GUIDE) if "langgraph-cli" in each.text]
    install, start = server.splitlines()
    programs = shared([*pip_lines(blocks_of(GUIDE)), install], store) / "bin"
    write_modules(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *(f"{programs}/langgraph", *start.split()[1:], "--no-reload", "--port", str(port)),
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


@pytest.mark.ci
def test_a_second_flow_is_a_flow_of_its_own(tmp_path: Path, store: Path) -> None:
    """As the guide says: its nodes are found by organization and flow, and no route answers a run of the other flow."""
    write_modules(tmp_path)
    done = run(python_of("langgraph", store), f"{HOSTS}.langgraph.two_flows", within=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "found": {"acme/welcome": True, "acme/refund": True, "globex/refund": False, "acme/removed": False},
        "tried": {"other": 404, "encoded": 404, "parent": 404, "own": 200},
    }


def write_modules(folder: Path) -> None:
    """Write the modules of LangGraph's guide."""
    for block in blocks_of(GUIDE):
        if block.language in {"python", "json"}:
            (folder / block.words[0]).write_text(block.text)
    (folder / "glue.py").write_text(files_of("langgraph")["glue.py"])
    (folder / "secret").write_text("whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")


async def answers(client: httpx.AsyncClient) -> bool:
    """Return whether the plugin answers in a server."""
    try:
        return (await client.get("/integrations/health/ready")).status_code == 200
    except httpx.TransportError:
        return False


AGAIN = [
    # Input on a thread that has ended is another passage, and so another event.
    (
        "langgraph",
        (),
        {
            "at-once": (4, 2),
            "retried": (4, 2),
            "before-the-step": (2, 2),
            "beside-the-interrupt": (5, 2),
            "at-the-end": (1, 1),
        },
    ),
    # A fork is another run.
    ("dbos", (), {"at-once": (3, 2), "outside": (4, 2), "before-the-step": (2, 2), "at-the-end": (2, 2)}),
    *(
        # If the action nodes have joined the transaction of the workflow, only the reset sends anything again.
        (
            "spiffworkflow",
            (mode,),
            {
                "at-once": (times, 1),
                "for-each": (2 * times, 2),
                "before-the-step": (1, 1),
                "at-the-end": (1, 1),
            },
        )
        for mode, times in (("apart", 3), ("joined", 2))
    ),
]
"""Engine, arguments of its module ``repeated``, and of each node how many webhooks it sends, and how many events they are."""


@pytest.mark.ci
@pytest.mark.parametrize(("engine", "mode", "counts"), AGAIN)
def test_what_it_runs_again_has_one_event_id(
    engine: str, mode: tuple[str, ...], counts: dict[str, tuple[int, int]], store: Path, tmp_path: Path
) -> None:
    """After a kill before the checkpoint or commit, a retry, a resume, a reset or time travel: the same event again, or nothing."""
    done = run(python_of(engine, store), f"{HOSTS}.{engine}.repeated", str(tmp_path), *mode, within=tmp_path)
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    assert {name: (len(ids), len(set(ids))) for name, ids in sent.items()} == counts


TOPICS = ("stars", "moons", "suns")
JOINED = ("joined", "about stars, about moons, about suns")
BESIDE = [
    ("langgraph", [*(("written", topic) for topic in TOPICS), JOINED], set()),
    # DBOS has the results of the children.
    ("dbos", [*(("indexed", topic) for topic in TOPICS), JOINED], {"indexed"}),
    (
        "spiffworkflow",
        [
            ("packed", "parcel for Rome"),
            ("packed", "parcel for Oslo"),
            ("billed", "the bill"),
            ("shipped", "all is done"),
        ],
        {"billed", "shipped"},
    ),
]
"""Engine, what each webhook's node says in its flow with branches side by side, and the nodes that do not run again."""


@pytest.mark.ci
@pytest.mark.parametrize(("engine", "said", "once"), BESIDE, ids=[each[0] for each in BESIDE])
def test_passages_side_by_side_are_events_of_their_own(
    engine: str, said: list[tuple[str, str]], once: set[str], store: Path, tmp_path: Path
) -> None:
    """Each with the engine's data of then; run again, it is the same event, although the branches, and people, have no order."""
    done = run(python_of(engine, store), f"{HOSTS}.{engine}.flows", str(tmp_path), within=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = {when: [tuple(row) for row in sent] for when, sent in json.loads(done.stdout).items()}
    first = Counter((node, json.loads(body)["said"]) for node, _, body in rows["once"])
    again = Counter((node, json.loads(body)["said"]) for node, _, body in rows["again"])
    assert first == Counter(said)
    assert again == Counter((node, text) for node, text in said if node not in once)
    for sent in rows.values():
        assert len({event for _, event, _ in sent}) == len(sent)
    assert set(rows["again"]) <= set(rows["once"])


@pytest.mark.ci
def test_its_connector_proxy_offers_each_node_type(store: Path, tmp_path: Path) -> None:
    """Each is a command whose parameters are the type's fields. If the proxy is given the call's id, a repeated call has the same ids."""
    done = run(
        python_of("spiffworkflow", store),
        f"{HOSTS}.spiffworkflow.proxy",
        str(tmp_path),
        within=tmp_path,
        settings={"PYTHONPATH": f"{ROOT}:{CONNECTOR}"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    fields = {
        each["id"]: {field["id"]: field["required"] for field in each["parameters"]}
        for each in found["catalog"]
    }
    types = FlowActions.load(SmallHost(tmp_path)).node_types
    assert set(fields) == {f"flowactions/{name}" for name in types}
    for name, kind in types.items():
        shown = fields[f"flowactions/{name}"]
        schema = kind.config_schema
        assert {*schema["properties"]} <= {*shown}
        assert {field for field, required in shown.items() if required} == {*schema["required"]}
    # The process has one task, and one with two instances, and it is run twice.
    ids = {mode: [event for _, event in rows] for mode, rows in found["sent"].items()}
    assert [len(each) for each in ids.values()] == [6, 6, 6]
    assert {mode: len(set(each)) for mode, each in ids.items()} == {
        "ids of the backend": 5,  # SpiffWorkflow makes the instances of a task anew, with other ids
        "no ids": 6,
        "no ids, but a visit": 3,
    }


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
            assert "from flowactions_conformance." not in text
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
            assert "glue.py" in written
            tests.add(written["test_host.py"])
        assert len(tests) == 1

    @pytest.mark.ci
    def test_the_modules_are_typed(self, tmp_path: Path) -> None:
        """As strictly as this project's: those of an engine are no part of its packages."""
        config = ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache")]
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
        assert main(["init", "--engine", "langgraph", str(tmp_path)]) == 2
        assert [each.name for each in tmp_path.iterdir()] == ["test_host.py"]
        assert "test_host.py exists, and nothing is written" in capsys.readouterr().err

    @pytest.mark.parametrize("engine", engines())
    @pytest.mark.ci
    def test_what_it_writes_is_proved(self, engine: str, tmp_path: Path, store: Path) -> None:
        """By its own tests, where its requirements are installed: all checks of what it claims."""
        assert main(["init", "--engine", engine, str(tmp_path)]) == 0
        lines = lines_of(engine)
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
    assert set(engines()) == set(PACKAGES)
