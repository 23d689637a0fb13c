"""SpiffWorkflow as a host, in an environment of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from flowactions_hookspecs import FlowActions
from tests.conformance.engines import python_of, run
from tests.conformance.hosts.small_host import SmallHost
from tests.docs.fences import ROOT
from tests.docs.tutorials import follow

GUIDE = ROOT / "docs" / "how-to" / "use-with-spiffworkflow.md"
HOST = "tests.conformance.hosts.spiffworkflow"
CONNECTOR = ROOT / "docs" / "examples" / "spiffworkflow"


@pytest.fixture(scope="module")
def python(store: Path) -> Path:
    """The Python of an environment with SpiffWorkflow."""
    return python_of("spiffworkflow", store)


@pytest.mark.ci
def test_its_guide_can_be_followed(tmp_path: Path, store: Path) -> None:
    """Literally, in an empty folder."""
    follow(GUIDE, tmp_path, store)


@pytest.mark.ci
@pytest.mark.parametrize(("mode", "times"), [("apart", 3), ("joined", 2)])
def test_what_it_runs_again_has_one_event_id(mode: str, times: int, python: Path, tmp_path: Path) -> None:
    """After a kill before the commit of the workflow, and a reset: the same event again, or, if it waits, nothing.

    If the action nodes have joined the transaction of the workflow, only the reset sends anything again.
    """
    done = run(python, f"{HOST}.repeated", str(tmp_path), mode, within=tmp_path)
    assert done.returncode == 0, done.stderr
    sent = json.loads(done.stdout)
    assert {name: (len(ids), len(set(ids))) for name, ids in sent.items()} == {
        "at-once": (times, 1),
        "for-each": (2 * times, 2),
        "before-the-step": (1, 1),
        "at-the-end": (1, 1),
    }


@pytest.fixture(scope="module")
def sent(
    python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, list[tuple[str, str, str]]]]:
    """What the three processes of `flows` have left in the outbox, when they were run once and again."""
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
            "order",
            [
                ("priced", "cup costs 4"),
                ("priced", "plate costs 7"),
                ("priced", "cup costs 4"),
                ("ordered", "cup costs 4"),
            ],
        ),
        (
            "shipping",
            [
                ("packed", "parcel for Rome"),
                ("packed", "parcel for Oslo"),
                ("billed", "the bill"),
                ("shipped", "all is done"),
            ],
        ),
        (
            "approval",
            [
                ("written", "draft 1"),
                ("reminded", "draft 1"),
                ("written", "draft 2"),
                ("reminded", "draft 2"),
                ("published", "draft 2"),
            ],
        ),
    ],
)
def test_processes_of_its_kind_run_with_action_nodes(
    flow: str, expected: list[tuple[str, str]], sent: dict[str, dict[str, list[tuple[str, str, str]]]]
) -> None:
    """Each passage is an event of its own, with the data of the process then; run again, it is the same event.

    It is so although people then answer in another order.
    """
    rows = sent[flow]["once"]
    assert Counter((node, json.loads(body)["said"]) for node, _, body in rows) == Counter(expected)
    assert len({event for _, event, _ in rows}) == len(rows)
    again = [row for row in rows if row[0] not in {"ordered", "billed", "shipped", "published"}]
    assert sorted(sent[flow]["again"]) == sorted(again)


@pytest.mark.ci
def test_its_connector_proxy_offers_each_node_type(python: Path, tmp_path: Path) -> None:
    """As commands whose parameters are the fields of the type; their ids are the same again if the proxy is told of the call."""
    done = run(
        python, f"{HOST}.proxy", str(tmp_path), within=tmp_path, settings={"PYTHONPATH": f"{ROOT}:{CONNECTOR}"}
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
