"""The small kit for plugins: the tutorial's plugin passes, and each faulty one is found by what it does wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from flowactions_conformance.__main__ import main
from flowactions_conformance.kit.plugins import tried
from flowactions_conformance.kit.plugins.checks import CHECKS
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorials" / "a-node-type-of-your-own.md").read_text()
GOOD = (
    re.findall(r"```python flowactions_crm.py\n(.*?)```", PAGE, re.DOTALL)[-1] + '\nflowactions_name = "crm"\n'
)
OPTIONS = ["--setting", "CRM_URL={receiver}/contacts", "--config", 'crm_add={"list": "leads"}']


class Faulty(NamedTuple):
    """A plugin's fault.

    Attributes:
        changes: text of the tutorial's plugin → what stands there instead.
        fails: the checks that fail.
        says: in what is printed.
    """

    changes: dict[str, str]
    fails: str
    says: str


FAULTY = {
    "no-description": Faulty(
        {'description="Adds the user."': 'description=" "'}, "PLUGIN-1", "has no description"
    ),
    "trusts-the-config": Faulty(
        {'if not node.config.get("list"):': 'if not node.config["list"].strip():'}, "PLUGIN-3", "the config {}"
    ),
    "commits": Faulty(
        {
            "return InTransaction(prepared.write)": (
                "async def write(transaction):\n"
                "            await transaction.commit()\n"
                "            return await prepared.write(transaction)\n"
                "        return InTransaction(write)"
            )
        },
        "PLUGIN-2 PLUGIN-3 PLUGIN-6",
        "a node of crm_add did not run: plugin_error",
    ),
    "looks-at-the-pacing": Faulty(
        {
            'if not node.config.get("list"):': (
                'if hasattr(walk.pacing, "next_step_id") or not node.config.get("list"):'
            )
        },
        "PLUGIN-4",
        "in a client-paced walk another result came",
    ),
    "one-event-for-all-runs": Faulty(
        {"walk.run_id, node.id, walk.visit": "node.id, walk.visit"},
        "PLUGIN-5",
        "has an event id that was used before",
    ),
    "writes-anew": Faulty(
        {
            "prepared = await self.actions.prepare(webhook)\n        return InTransaction(prepared.write)": (
                "async def write(transaction):\n"
                "            prepared = await self.actions.prepare(webhook)\n"
                "            return await prepared.write(transaction)\n"
                "        return InTransaction(write)"
            )
        },
        "PLUGIN-6",
        "write was called twice, and two deliveries were written",
    ),
    "secret-raises": Faulty(
        {'return "the CRM\'s secret"': 'raise KeyError("secret")'}, "PLUGIN-7", "did not arrive"
    ),
    "check-runs-the-node": Faulty(
        {
            "        return [ConfigProblem(": "        return [ConfigProblem(",
            'if draft.node.config.get("list"):\n            return []': (
                'if draft.node.config.get("list"):\n'
                "            from flowactions_hookspecs import Walk\n"
                '            walk = Walk(organization_id="o", agent_id="a", flow_id="f", run_id=str(id(object())))\n'
                '            origin = PluginOrigin(organization_id="o", plugin="crm", name="contact", id="x")\n'
                "            await self.actions.enqueue(OutboundWebhook(\n"
                '                organization_id="o", event_type="crm.tried", entity="x", url=self.url, origin=origin\n'
                "            ))\n"
                "            return []"
            ),
        },
        "PLUGIN-8",
        "check or preview has written a delivery",
    ),
    "a-secret-in-clear": Faulty(
        {"list: Annotated[str, ": 'api_key: str = ""\n    list: Annotated[str, '},
        "PLUGIN-9",
        "api_key of crm_add is stored",
    ),
    "one-for-all-hosts": Faulty(
        {
            "crm = actions.plugin_state(Crm)": "crm = _only(actions)",
            "class Crm:": (
                "_made = []\n\n\n"
                "def _only(actions):\n"
                "    _made.append(actions.plugin_state(Crm))\n"
                "    return _made[0]\n\n\n"
                "class Crm:"
            ),
        },
        "PLUGIN-10",
        "a node of one host",
    ),
}


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What never ends is waited for only so long; what arrives does so at once."""
    monkeypatch.setattr(tried, "DELIVERED_SECONDS", 10.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives is waited for, however slow the machine is."""
    monkeypatch.setattr(tried, "DELIVERED_SECONDS", SAFETY_SECONDS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the plugin's module is, and from which the command is called."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "flowactions_crm", raising=False)  # another test's, by the same name
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("flowactions_crm", None)


def checked(folder: Path, text: str) -> int:
    (folder / "flowactions_crm.py").write_text(text)
    return main(["plugin", "flowactions_crm", *OPTIONS])


@pytest.mark.usefixtures("patient")
def test_the_tutorials_plugin_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is printed."""
    assert checked(folder, GOOD) == 0, capsys.readouterr().out
    assert f"crm_add: {len(CHECKS)} checks passed" in capsys.readouterr().out


@pytest.mark.ci
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_plugin_is_found(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the checks that it must fail, and by no others; what is printed leads to the fault."""
    text = GOOD
    for old, new in FAULTY[name].changes.items():
        assert old in text
        text = text.replace(old, new)
    assert checked(folder, text) == 1
    out = capsys.readouterr().out
    assert re.findall(r"^FAIL  (\S+)", out, re.MULTILINE) == FAULTY[name].fails.split()
    assert FAULTY[name].says in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "no installed plugin has the name 'nowhere'"),
        (["flowactions_crm"], "CRM_URL must be the CRM's address"),
        (["flowactions_crm", "--setting", "CRM_URL"], "--setting takes NAME=VALUE"),
        (["flowactions_crm", *OPTIONS, "--config", "x={}"], "has no node type x; it has crm_add"),
        (["flowactions_crm", "--config", "crm_add=["], "--config crm_add: Expecting value"),
        (["flowactions_crm", "--config", "crm_add=@nowhere.json"], "nowhere.json"),
        (["json", *OPTIONS], "has no node types"),
    ],
)
def test_a_wrong_command_line_is_told(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with exit status 2."""
    (folder / "flowactions_crm.py").write_text(GOOD)
    assert main(["plugin", *arguments]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert len(told.splitlines()) == 1


def test_each_check_follows_from_a_sentence_of_the_contract() -> None:
    """Word for word."""
    pages = [
        (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8") for name in ("contract", "plugins")
    ]
    said = " ".join(" ".join(pages).split())
    sentences = [check.clause.removeprefix("contract: ") for check in CHECKS]
    assert [sentence for sentence in sentences if sentence not in said] == []
