from __future__ import annotations

import inspect
import json
from typing import Any, get_type_hints

import msgspec
import pytest

import flowactions_hookspecs
from flowactions_hookspecs import (
    Deferred,
    Eager,
    ExperienceTriggerRef,
    FlowActions,
    FlowNodeOrigin,
    Header,
    Host,
    HostOrigin,
    LogicAction,
    LogicActionOrigin,
    Node,
    NodeTriggerRef,
    NodeType,
    Origin,
    PluginOrigin,
    Request,
    Runtime,
    ScopeRequest,
    Walk,
    spec,
)
from flowactions_hookspecs.base import ContractStruct

STRUCTS = [
    value
    for value in vars(flowactions_hookspecs).values()
    if isinstance(value, type) and issubclass(value, ContractStruct)
]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_struct_can_be_decoded(struct: type[msgspec.Struct]) -> None:
    """No field's type is out of msgspec's reach at run time."""
    callables = {"NodeType", "BackgroundTask", "LogicActionType"}
    if struct.__name__ not in callables:
        msgspec.json.Decoder(struct)
    assert struct.__struct_config__.frozen


@pytest.mark.parametrize(
    "owner", [FlowActions, Host, Runtime, Request, ScopeRequest, spec], ids=lambda owner: owner.__name__
)
def test_annotations_can_be_resolved(owner: Any) -> None:
    """Frameworks that inject dependencies resolve those of what they are given, whatever the contract does not import."""
    assert get_type_hints(owner) is not None
    public = [member for name, member in vars(owner).items() if not name.startswith("_")]
    functions = [getattr(member, "fget", None) or getattr(member, "__func__", member) for member in public]
    assert all("return" in get_type_hints(function) for function in functions if inspect.isfunction(function))


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_struct_is_built_by_keyword(struct: type[msgspec.Struct]) -> None:
    """A field that is added later cannot shift the others: msgspec does not inherit kw_only."""
    with pytest.raises(TypeError, match="positional"):
        struct("x")


def test_a_struct_is_camel_case_on_the_wire() -> None:
    """Wire names are camelCase, and a field of a newer peer is ignored."""
    walk = msgspec.json.decode(
        b'{"organizationId":"o","agentId":"a","flowId":"f","runId":"r","later":1}', type=Walk
    )
    assert (walk.organization_id, walk.pacing, walk.visit) == ("o", Eager(), "1")
    paced = msgspec.structs.replace(walk, pacing=Deferred("s"))
    assert b'"pacing":{"kind":"deferred","nextStepId":"s"}' in msgspec.json.encode(paced)
    assert msgspec.json.decode(msgspec.json.encode(paced), type=Walk) == paced


@pytest.mark.parametrize(
    "origin",
    [
        FlowNodeOrigin(organization_id="o", agent_id="a", flow_id="f", node_id="n"),
        LogicActionOrigin(
            ref=ExperienceTriggerRef(
                organization_id="o", agent_id="a", experience_id="e", trigger_row_id="t", action_index=1
            )
        ),
        LogicActionOrigin(
            ref=NodeTriggerRef(
                organization_id="o",
                agent_id="a",
                experience_id="e",
                node_id="n",
                node_trigger_group_id="g",
                action_index=0,
                question_id="q",
            )
        ),
        HostOrigin(organization_id="o", name="order-placed", id="1"),
        PluginOrigin(organization_id="o", plugin="crm", name="sync", id="1"),
    ],
)
def test_an_origin_survives_its_round_trip(origin: Origin) -> None:
    """Every kind of origin decodes to what was encoded, and can be a key."""
    assert msgspec.json.decode(msgspec.json.encode(origin), type=Origin) == origin
    assert hash(origin)


def test_secrets_stay_out_of_reprs() -> None:
    """A config, a header value and a secret never show in a repr."""
    shown = repr(
        [
            Node(id="n", type="webhook", config={"webhookSecret": "hush"}),
            Header(key="authorization", value="hush"),
            LogicAction(url="https://example.com", secret="hush", headers=(Header(key="k", value="hush"),)),
        ]
    )
    assert "hush" not in shown
    assert "https://example.com" in shown


def test_a_node_type_describes_itself_as_json() -> None:
    """What the editor gets is JSON, camelCase, without the callable."""

    async def reach(*_: Any) -> Any:
        raise NotImplementedError

    described = NodeType(name="n", title="N", description="d", reach=reach).describe()
    assert json.loads(msgspec.json.encode(described)) == described
    assert described["configSchema"] == {}
    assert not {"reach", "check", "preview"} & set(described)


@pytest.mark.parametrize("hook", [name for name in vars(spec) if name.startswith("flowactions_")], ids=str)
def test_every_hook_says_when_it_is_called(hook: str) -> None:
    """Each hook's docstring tells what it declares and how often it is called, and it takes host and actions."""
    function = getattr(spec, hook)
    assert "Called once per plugin at load." in (function.__doc__ or "")
    assert list(inspect.signature(function).parameters) == ["host", "actions"]
    assert not inspect.iscoroutinefunction(function)
