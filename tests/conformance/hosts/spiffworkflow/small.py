"""What the small processes of SpiffWorkflow have in common: a workflow, its engine, and a table in which it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glue import ActionEngine
from SpiffWorkflow.bpmn.script_engine import TaskDataEnvironment
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow
from SpiffWorkflow.spiff.parser.process import SpiffBpmnParser
from SpiffWorkflow.task import Task

from flowactions_hookspecs import FlowActions, Walk
from tests.conformance.hosts.small_host import WEBHOOK, walk

FOLDER = Path(__file__).parent / "bpmn"


def workflow_in(name: str) -> BpmnWorkflow:
    """Make a workflow of the process in a file; both have one name."""
    parser = SpiffBpmnParser()
    parser.add_bpmn_file(str(FOLDER / f"{name}.bpmn"))
    return BpmnWorkflow(parser.get_spec(name), parser.get_subprocess_specs(name))


def engine_of(actions: FlowActions, transaction: Any = None) -> ActionEngine:
    """Make the engine of a workflow; expressions know the URL and the body of the webhooks."""
    environment = TaskDataEnvironment({"url": WEBHOOK["webhookUrl"], "body": WEBHOOK["webhookBody"]})
    return ActionEngine(actions, walk_of, environment=environment, transaction=transaction)


def walk_of(task: Task) -> Walk:
    """Make the walk of the only run."""
    return walk("run-1", task.data.get("said", ""))
