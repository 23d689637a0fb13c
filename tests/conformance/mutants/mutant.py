"""What a mutant is, and how one is made from the reference host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from flowactions_conformance import Env, Factory
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.testing import ReferenceDriver


class Mutant(NamedTuple):
    """A host that does one thing wrong.

    Attributes:
        name: in test ids.
        breaks: what it does wrong, in one sentence.
        factory: makes it.
        kills: the ids of checks that fail with it.
        spares: ids of checks near by that pass with it all the same.
        message: a part of what one of these says, which leads to the fault.
    """

    name: str
    breaks: str
    factory: Factory
    kills: frozenset[str]
    spares: frozenset[str]
    message: str


def changed(change: Callable[[ReferenceDriver], None]) -> Factory:
    """Returns a factory of the reference host to which something was done before it starts.

    Args:
        change: does it. At the top of a module: a child process finds the factory as ``factory`` of that function.
    """

    @asynccontextmanager
    async def make_host(env: Env) -> AsyncIterator[ReferenceDriver]:
        driver = ReferenceDriver(create_app(env.settings, env.database_url), env)
        change(driver)
        yield driver

    make_host.__module__, make_host.__qualname__ = change.__module__, f"{change.__qualname__}.factory"
    change.factory = make_host  # type: ignore[attr-defined]
    return make_host


def mutant(
    name: str,
    breaks: str,
    factory: Factory,
    *,
    kills: str,
    spares: str = "",
    message: str = "",
) -> Mutant:
    """Returns a mutant; ids are separated by spaces."""
    return Mutant(name, breaks, factory, frozenset(kills.split()), frozenset(spares.split()), message)
