"""Ids at the facade: text of 1 to 255 characters without NUL or lone surrogates, or nothing happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from flowactions_hookspecs import Deferred, Eager, FlowActions, LogicAction, Node, NodeDraft
from tests.support import SmallHost, a_walk, development, services_of
from tests.triggers import EXPERIENCE, NODE_TRIGGER

Call = Callable[[FlowActions, Any], Awaitable[Any]]

NODE = replace(NODE_TRIGGER, question_id="q1")
A_NODE = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:9/"})
NOW = datetime.now(UTC)


def reach(field: str, **walk: Any) -> Call:
    return lambda actions, value: actions.reach(a_walk(**{**walk, field: value}), A_NODE)


def advance(field: str) -> Call:
    return lambda actions, value: actions.advance(a_walk(**{field: value}), "s")


def dispatch(ref: Any, field: str) -> Call:
    return lambda actions, value: actions.dispatch(
        replace(ref, **{field: value}), firing_id="f", occurred_at=NOW
    )


IDS: dict[str, Call] = {
    **{
        f"reach walk.{field}": reach(field)
        for field in ("organization_id", "agent_id", "flow_id", "run_id", "visit")
    },
    "deferred next_step_id": lambda actions, value: actions.reach(a_walk(pacing=Deferred(value)), A_NODE),
    "node.id": lambda actions, value: actions.reach(a_walk(), replace(A_NODE, id=value)),
    "node.type": lambda actions, value: actions.reach(a_walk(), replace(A_NODE, type=value)),
    **{f"advance walk.{field}": advance(field) for field in ("organization_id", "flow_id", "run_id")},
    "advance step_id": lambda actions, value: actions.advance(a_walk(), value),
    **{
        f"dispatch {field}": dispatch(EXPERIENCE, field)
        for field in ("organization_id", "agent_id", "experience_id", "trigger_row_id")
    },
    **{
        f"dispatch node {field}": dispatch(NODE, field)
        for field in ("node_id", "node_trigger_group_id", "question_id")
    },
    "firing_id": lambda actions, value: actions.dispatch(EXPERIENCE, firing_id=value, occurred_at=NOW),
}
NO_IDS: list[tuple[Any, type[Exception]]] = [
    ("", ValueError),
    ("x" * 256, ValueError),
    ("a\0b", ValueError),
    ("\ud800", ValueError),
    (7, TypeError),
    (b"id", TypeError),
    (["id"], TypeError),
]
IDS_OF_ANY_FORM = [
    "x" * 255,
    "😀" * 255,
    " ",
    '"',
    "\u202e",
    "日本",
    "\n",
    "50%",
    "a%2Fb",
    "a?b",
    "a#b",
    "a;b",
    "..a",
    "a\\b",
    "{a}",
]
NOT_IN_PATHS = ["a/b", "/", ".", ".."]
IN_PATHS = ("agent_id", "experience_id")


@pytest.fixture
async def actions(database_url: str) -> Any:
    host = SmallHost(development(database_url, FLOWACTIONS_HOST_WORKER="off"))
    host.action = LogicAction(url="http://127.0.0.1:9/")
    made = FlowActions.load(host)
    async with made.lifespan():
        yield made


async def rows(actions: FlowActions) -> int:
    """Count what is in the plugin's tables."""
    total = 0
    async with services_of(actions.host)._database.read() as connection:
        for table in ("flowactions_outbox", "flowactions_deferred", "flowactions_halted_runs"):
            total += (await connection.exec_driver_sql(f"SELECT count(*) FROM {table}")).scalar_one()  # noqa: S608
    return total


async def test_what_is_no_id_is_refused_before_anything_happens(actions: FlowActions) -> None:
    """Each id of each call is checked: TypeError for what is not text, ValueError for other text, on both databases (§2)."""
    for name, call in IDS.items():
        for value, error in NO_IDS:
            with pytest.raises(error, match=name.rpartition(" ")[2].rpartition(".")[2]) as caught:
                await call(actions, value)
            assert "a\0b" not in str(caught.value)
    assert await rows(actions) == 0


async def test_any_other_text_is_an_id(actions: FlowActions) -> None:
    """Ids are opaque: whatever UTF-8 can write, up to 255 characters, works alike on both databases."""
    for name, call in IDS.items():
        for value in IDS_OF_ANY_FORM:
            result = await call(actions, value)
            if name != "node.type":
                assert getattr(result, "status", "queued") in {"queued", "recorded"}, (name, value)


async def test_ids_of_agents_and_experiences_stand_in_paths(actions: FlowActions) -> None:
    """A slash, `.` and `..` cannot: servers decode a path before they route it. Other ids may have them."""
    for name, call in IDS.items():
        for value in NOT_IN_PATHS:
            if name.endswith(IN_PATHS):
                with pytest.raises(ValueError, match="id must not hold a slash"):
                    await call(actions, value)
            else:
                await call(actions, value)
    draft = NodeDraft(organization_id="acme", agent_id="a/b", node=A_NODE)
    with pytest.raises(ValueError, match=r"draft\.agent_id must not hold a slash"):
        await actions.check(draft)


@pytest.mark.parametrize("call", ["preview", "test"])
async def test_draft_and_walk_are_of_one_organization(actions: FlowActions, call: str) -> None:
    """Nothing of an organization is shown or sent with the values of another one's walk."""
    draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=A_NODE)
    with pytest.raises(ValueError, match=r"walk\.organization_id"):
        await getattr(actions, call)(draft, a_walk(organization_id="globex"))
    assert await rows(actions) == 0


async def test_none_is_the_end_of_the_flow(actions: FlowActions) -> None:
    """Neither a step named like the empty text nor anything else stands for it."""
    walk = a_walk(pacing=Deferred(None))
    assert (await actions.reach(walk, A_NODE)).status == "recorded"
    with pytest.raises(ValueError, match="step_id must not be empty"):
        await actions.advance(walk, "")
    with pytest.raises(TypeError):
        await actions.reach(replace(walk, run_id=None), A_NODE)


async def test_what_the_user_says_is_free_text(actions: FlowActions) -> None:
    """user_id and content hold NUL, lone surrogates and nothing at all, alike on both databases and in both pacings."""
    for text in ("", "a\0b", "\ud800", "x" * 8_000, '"\\'):
        for pacing, status in ((Eager(), "queued"), (Deferred("s"), "recorded")):
            walk = a_walk(user_id=text, content=text, pacing=pacing)
            config = {"webhookUrl": "http://127.0.0.1:9/", "webhookBody": '[{{userId}}, "{{content}}"]'}
            config["webhookHeaders"] = [{"key": "x", "value": "{{content}}"}]  # type: ignore[assignment]
            assert (await actions.reach(walk, replace(A_NODE, config=config))).status == status
    for field in ("user_id", "content"):
        for value in (None, 7, b""):
            with pytest.raises(TypeError, match=field):
                await actions.reach(a_walk(**{field: value}), A_NODE)


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        (datetime(2026, 1, 1), ValueError),  # noqa: DTZ001  that is the point
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=5))), ValueError),
        (0, TypeError),
        ("2026-01-01T00:00:00Z", TypeError),
        (None, TypeError),
    ],
)
async def test_a_firing_has_a_time_with_a_zone(
    actions: FlowActions, moment: Any, error: type[Exception]
) -> None:
    """occurred_at is an aware datetime that UTC can write."""
    with pytest.raises(error, match="occurred_at"):
        await actions.dispatch(EXPERIENCE, firing_id="f", occurred_at=moment)
    assert await rows(actions) == 0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda actions: actions.reach({}, A_NODE), TypeError),
        (lambda actions: actions.reach(a_walk(), {}), TypeError),
        (lambda actions: actions.reach(a_walk(pacing="later"), A_NODE), TypeError),
        (lambda actions: actions.advance(None, "s"), TypeError),
        (lambda actions: actions.dispatch({}, firing_id="f", occurred_at=NOW), TypeError),
        (dispatch(EXPERIENCE, "action_index"), TypeError),
    ],
)
async def test_a_call_with_something_else_says_what_it_wants(
    call: Any, error: type[Exception], tmp_path: Path
) -> None:
    """A wrong type is a TypeError at the caller, not a failed node."""
    made = FlowActions.load(SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}")))
    async with made.lifespan():
        with pytest.raises(error):
            await (call(made) if call.__code__.co_argcount == 1 else call(made, "0"))


@pytest.mark.parametrize("index", [-1, 2**31])
async def test_an_action_index_is_bounded(actions: FlowActions, index: int) -> None:
    """Below zero and beyond 31 bits there is no action."""
    with pytest.raises(ValueError, match="action_index"):
        await dispatch(EXPERIENCE, "action_index")(actions, index)
