"""The reference host with ids of its own that the contract allows and few expect. It repeats what failed when a flow is opened."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from flowactions_conformance import Action, Env, Flow, HostDriver, Login, TriggerRef, World
from flowactions_conformance.reference_host.app import ReferenceApp, create_app
from flowactions_conformance.reference_host.testing import ReferenceDriver

IN_PATHS: Final = ".é%2F {} e\u0301?&#;+%:"
"""What stands in a path of the reference host, or of the plugin."""
ODD: Final = "/../{}//🚀 \\"
FORMS: Final = {"node": ODD, "group": ODD, "organization": ODD, "organizations": ODD, "question": ODD}
NAMES: Final = {"organization", "agent", "agents", "flow", "experience", "trigger", "node", "question"}
Whole = TypeVar("Whole", bound=msgspec.Struct)


class OddIdsDriver(ReferenceDriver):
    """Translates the kit's ids; people and backends keep theirs, which stand in credentials."""

    agents = IN_PATHS

    def __init__(self, made: ReferenceApp, env: Env) -> None:
        super().__init__(made, env)
        opens = made.walker.open

        async def repeating(*run: Any) -> Any:
            try:
                return await opens(*run)
            except RuntimeError:
                return await opens(*run)

        made.walker.open = repeating  # type: ignore[assignment, method-assign]

    async def seed(self, world: World) -> Mapping[str, str]:
        """See `HostDriver.seed`."""
        ids: dict[str, str] = {}
        await super().seed(self._odd(world, ids))
        return ids

    async def save(self, who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        """See `HostDriver.save`."""
        return await super().save(who, self._odd(flow))

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """See `HostDriver.preview`."""
        return await super().preview(who, IN_PATHS.format(flow), self._odd(node))

    async def trigger(self, ref: TriggerRef) -> None:
        """See `HostDriver.trigger`."""
        await super().trigger(self._odd(ref))

    def _odd(self, whole: Whole, ids: dict[str, str] | None = None) -> Whole:
        made = {} if ids is None else ids

        def changed(name: str, value: Any, of: str = "") -> Any:
            if isinstance(value, dict):
                kind = (
                    "node" if "kind" in value and name != "logins" else "group" if value.get("node") else name
                )
                return {
                    key: each
                    if key == "config" or (kind, key) == ("logins", "id")
                    else changed(key, each, kind)
                    for key, each in value.items()
                }
            if isinstance(value, (list, tuple)):
                return [changed(name, each, of) for each in value]
            if not isinstance(value, str) or name not in {"id", *NAMES}:
                return value
            form = of if name == "id" else name
            new = (self.agents if form in {"agent", "agents"} else FORMS.get(form, IN_PATHS)).format(value)
            # The ids of different kinds may be different: the kit may not name two things alike.
            assert made.setdefault(value, new) == new, (name, of, value)
            return made[value]

        return msgspec.convert(changed("", msgspec.to_builtins(whole)), type(whole))


class SlashDriver(OddIdsDriver):
    """The ids of its agents hold a slash: the one thing of it that the contract does not allow."""

    agents = "team/{}"


class NotCounting(OddIdsDriver):
    """Does not say how many commits have failed."""

    failed_commits = HostDriver.failed_commits


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[OddIdsDriver]:
    """Make the host."""
    yield OddIdsDriver(create_app(env.settings, env.database_url), env)


@asynccontextmanager
async def with_slashes(env: Env) -> AsyncIterator[OddIdsDriver]:
    """Make the one whose agents' ids cannot stand in a path."""
    yield SlashDriver(create_app(env.settings, env.database_url), env)


@asynccontextmanager
async def without_count(env: Env) -> AsyncIterator[OddIdsDriver]:
    """Make the one whose driver does not count failed commits."""
    yield NotCounting(create_app(env.settings, env.database_url), env)
