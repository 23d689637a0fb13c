"""The promises of the claim hold in every state of the model, and each of its rules is needed (decision 71)."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.model.names import CODE, RULES
from tests.model.search import search, search_states
from tests.model.sequences import RULES as RULES_OF_SEQUENCES
from tests.model.sequences import Sequence
from tests.model.world import WORLDS

pytestmark = pytest.mark.ci

ACCIDENTS = {"kill", "stall", "outage", "the database is back", "tick"}


def imported(name: str) -> Any:
    """Return what a qualified name names: a function of a module, or a method of its class."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(imported(module), attribute)


def test_every_promise_holds_in_every_state() -> None:
    """No row is lost, sent without a lease or dead without its attempts; and each step of the code was taken."""
    names: set[str] = set()
    for name, world in WORLDS.items():
        found = search(world)
        assert found.wrong is None, f"{name}: {found}"
        names |= found.names
    assert names == {*CODE, *ACCIDENTS}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_needed(rule: str) -> None:
    """Without it, a promise is broken: the shortest way there is a trace of steps."""
    found = search(WORLDS[RULES[rule].world], without=rule)
    assert found.wrong is not None
    assert RULES[rule].breaks in str(found), str(found)


def test_a_sequence_has_one_row_due_and_leaves_none_behind() -> None:
    """Two requests are on the way only after a lease was lost."""
    model = Sequence()
    found = search_states(model, model.start)
    assert found.wrong is None, str(found)


@pytest.mark.parametrize("rule", RULES_OF_SEQUENCES)
def test_each_rule_of_sequences_is_needed(rule: str) -> None:
    """Without it, a promise is broken."""
    model = Sequence(without=rule)
    found = search_states(model, model.start)
    assert found.wrong is not None
    assert RULES_OF_SEQUENCES[rule][1] in str(found), str(found)


NAMED = {
    *CODE.values(),
    *(rule.code for rule in RULES.values()),
    *(code for code, _ in RULES_OF_SEQUENCES.values()),
}


@pytest.mark.parametrize("name", sorted(NAMED))
def test_steps_and_rules_are_named_as_in_the_code(name: str) -> None:
    """What the model names is a function of the plugin."""
    assert callable(imported(name))
