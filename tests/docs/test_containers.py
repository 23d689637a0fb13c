from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.settings.model import READERS

FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "containers"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))


def instructions(name: str) -> list[str]:
    """Give the arguments of an instruction of the image."""
    return re.findall(rf"^{name} (.+)$", DOCKERFILE, re.MULTILINE)


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Give the pod of each manifest that has one."""
    for manifest in MANIFESTS:
        spec = manifest.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield manifest["metadata"]["name"], spec["template"]["spec"]


PODS = dict(pods())


def commands() -> list[list[str]]:
    """Give every command line of the examples."""
    return [
        *(json.loads(each) for each in instructions("CMD")),
        *(each["command"] for each in COMPOSE["services"].values() if "command" in each),
        *(container["command"] for pod in PODS.values() for container in pod["containers"]),
    ]


@pytest.mark.parametrize("line", commands(), ids=" ".join)
def test_a_command_of_the_examples_can_be_run(line: list[str]) -> None:
    """Its arguments are those of the command, and it is a list: no shell is in front of it."""
    assert isinstance(line, list)
    program, *arguments = line
    if program == "uvicorn":
        return
    assert program == "flowactions"
    group: click.Command = flowactions
    while isinstance(group, click.Group):
        _, found, arguments = group.resolve_command(click.Context(group), arguments)
        assert found is not None
        group = found
    group.make_context("flowactions", arguments)


def test_the_settings_of_the_examples_exist() -> None:
    """Names of other programs apart."""
    text = "".join(path.read_text() for path in FOLDER.iterdir())
    names = set(re.findall(r"\bFLOWACTIONS_[A-Z_]+\b", text))
    assert {"FLOWACTIONS_DATABASE_URL", "FLOWACTIONS_ENCRYPTION_KEYS"} <= names <= READERS.keys()


def test_a_worker_has_the_time_to_drain() -> None:
    """Longer than an attempt, and than a tick that is finished first."""
    least = Timing().stop_seconds + 20
    assert int(COMPOSE["services"]["worker"]["stop_grace_period"].removesuffix("s")) >= least
    assert PODS["flowactions-worker"]["terminationGracePeriodSeconds"] >= least
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_nothing_runs_as_root() -> None:
    """In the image, and in every pod, whose user is the image's."""
    (user,) = instructions("USER")
    assert user.isdigit()
    assert user != "0"
    for name, pod in PODS.items():
        assert pod["securityContext"]["runAsNonRoot"], name
        assert str(pod["securityContext"]["runAsUser"]) == user
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert not container["securityContext"]["allowPrivilegeEscalation"]


def test_tables_come_first() -> None:
    """Whatever uses the tables waits for them."""
    services = COMPOSE["services"]
    for name in ("web", "worker"):
        assert services[name]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["depends_on"]["database"]["condition"] == "service_healthy"


def test_probes_are_routes() -> None:
    """Those of the HTTP page."""
    page = (FOLDER.parents[1] / "reference" / "http.md").read_text()
    (web,) = PODS["shop-web"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        assert f"`GET {web[probe]['httpGet']['path']}`" in page
    assert not any("Probe" in key for each in PODS["flowactions-worker"]["containers"] for key in each)
