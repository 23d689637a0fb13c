"""Writes a flow, as the kit describes flows, as BPMN: `Step`, `Action`, `Branch`, `Loop` and `SubFlow`, as dictionaries.

Your own processes need none of this: `glue.py` is all that they use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from glue import OPERATOR, WAITS, shown
from lxml import etree
from SpiffWorkflow.bpmn.serializer import BpmnWorkflowSerializer
from SpiffWorkflow.bpmn.workflow import BpmnWorkflow
from SpiffWorkflow.spiff.parser.process import SpiffBpmnParser
from SpiffWorkflow.spiff.serializer.config import SPIFF_CONFIG

Item = dict[str, Any]

BPMN: Final = "http://www.omg.org/spec/BPMN/20100524/MODEL"
SPIFF: Final = "http://spiffworkflow.org/bpmn/schema/1.0/core"
BEGIN: Final = "begin"
"""The task at which a client-paced flow waits whose first item is no step."""


def workflow_of(flow_id: str, flows: Callable[[str], Sequence[Item]], *, paced: bool) -> BpmnWorkflow:
    """Make the workflow of a flow; its serialization holds the flow and its sub-flows as they are now.

    Args:
        flow_id: its process.
        flows: id of a flow → its items.
        paced: whether the user goes from step to step.
    """
    root = etree.Element(_bpmn("definitions"), nsmap={"bpmn": BPMN, "spiffworkflow": SPIFF})
    for each in _called(flow_id, flows):
        _Process(root, paced=paced).write(each, flows(each), is_top=each == flow_id)
    parser = SpiffBpmnParser()
    parser.add_bpmn_xml(root)
    return BpmnWorkflow(parser.get_spec(flow_id), parser.get_subprocess_specs(flow_id))


def serializer() -> BpmnWorkflowSerializer:
    """Make what writes a workflow as JSON, and reads it."""
    return BpmnWorkflowSerializer(BpmnWorkflowSerializer.configure(SPIFF_CONFIG))


def shown_step(workflow: BpmnWorkflow) -> Item:
    """Return the step at which a workflow waits for the user, by the id of its task, and whether it has ended."""
    task = next(iter(shown(workflow)), None)
    step = None if task is None or task.task_spec.bpmn_id == BEGIN else str(task.id)
    return {"step": step, "done": workflow.completed}


def actions_in(items: Sequence[Item]) -> Iterator[Item]:
    """Return the action nodes of items, in loops and branches, too, but not in sub-flows."""
    for item in items:
        if item["kind"] == "action":
            yield item
        for name in ("items", "taken", "other"):
            yield from actions_in(item.get(name, ()))


def called_by(items: Sequence[Item]) -> Iterator[str]:
    """Return the ids of the sub-flows of items."""
    for item in items:
        if item["kind"] == "subflow":
            yield item["flow"]
        for name in ("items", "taken", "other"):
            yield from called_by(item.get(name, ()))


def _called(flow_id: str, flows: Callable[[str], Sequence[Item]]) -> list[str]:
    found = [flow_id]
    for each in found:
        found += [other for other in dict.fromkeys(called_by(flows(each))) if other not in found]
    return found


def _bpmn(name: str) -> str:
    return f"{{{BPMN}}}{name}"


class _Process:
    """Writes the elements of a process, or of a sub-process, and the flows between them."""

    def __init__(self, parent: Any, *, paced: bool) -> None:
        self._parent = parent
        self._last: Any = parent
        self._paced = paced

    def write(self, process_id: str, items: Sequence[Item], *, is_top: bool) -> None:
        """Write a process."""
        self._parent = self._element("process", process_id, isExecutable="true")
        waits = is_top and self._paced and bool(items) and items[0]["kind"] != "step"
        self.fill(process_id, [{"kind": "begin", "id": BEGIN}, *items] if waits else items)

    def fill(self, name: str, items: Sequence[Item]) -> None:
        """Write a start, items and an end."""
        self._element("startEvent", f"{name} start")
        last = self._chain(f"{name} start", items)
        self._element("endEvent", f"{name} end")
        self._connect(last, f"{name} end")

    def _chain(self, last: str, items: Sequence[Item]) -> str:
        for item in items:
            last = getattr(self, f"_add_{item['kind']}")(last, item)
        return last

    def _add_begin(self, last: str, item: Item) -> str:
        return self._follow(last, "manualTask", item["id"])

    def _add_step(self, last: str, item: Item) -> str:
        return self._follow(last, "userTask", item["id"]) if self._paced else last

    def _add_action(self, last: str, item: Item) -> str:
        name = self._follow(last, "serviceTask", item["id"])
        extensions = etree.SubElement(self._last, _bpmn("extensionElements"))
        operator = etree.SubElement(extensions, f"{{{SPIFF}}}serviceTaskOperator", id=OPERATOR + item["type"])
        parameters = etree.SubElement(operator, f"{{{SPIFF}}}parameters")
        for field, value in {**item["config"], WAITS: self._paced}.items():
            # Expressions are Python's; ascii() leaves nothing that XML does not take.
            each = {"id": field, "type": "any", "value": ascii(value)}
            etree.SubElement(parameters, f"{{{SPIFF}}}parameter", each)
        return name

    def _add_branch(self, last: str, item: Item) -> str:
        name, joined = self._follow(last, "exclusiveGateway", item["id"]), f"{item['id']} joined"
        self._last.set("default", f"{name} other")
        self._element("exclusiveGateway", joined)
        for arm in ("taken", "other"):
            first = self._follow(name, "exclusiveGateway", f"{name} {arm} arm", f"{name} {arm}")
            self._connect(self._chain(first, item[arm]), joined)
        condition = self._parent.find(f"*[@id='{name} taken']")
        etree.SubElement(condition, _bpmn("conditionExpression")).text = "True"
        return joined

    def _add_loop(self, last: str, item: Item) -> str:
        name = self._follow(last, "subProcess", item["id"])
        inner = _Process(self._last, paced=self._paced)
        inner.fill(name, item["items"])
        etree.SubElement(self._last, _bpmn("standardLoopCharacteristics"), loopMaximum=str(item["times"]))
        return name

    def _add_subflow(self, last: str, item: Item) -> str:
        name = self._follow(last, "callActivity", item["id"])
        self._last.set("calledElement", item["flow"])
        return name

    def _follow(self, last: str, kind: str, name: str, flow: str = "") -> str:
        self._element(kind, name)
        element = self._last
        self._connect(last, name, flow)
        self._last = element
        return name

    def _connect(self, source: str, target: str, flow: str = "") -> None:
        self._element("sequenceFlow", flow or f"{source} to {target}", sourceRef=source, targetRef=target)

    def _element(self, kind: str, name: str, **attributes: str) -> Any:
        self._last = etree.SubElement(self._parent, _bpmn(kind), id=name, **attributes)
        return self._last
