"""A healthy host with one organization: everybody and everything belongs to it, and it claims no tenancy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import msgspec

from flowactions_conformance import Env, Flow, Login, Organization, TriggerRef, World
from flowactions_conformance.reference_host.app import create_app
from flowactions_conformance.reference_host.testing import ReferenceDriver

ONLY: Final = "the-only-one"

Owned = TypeVar("Owned", bound=msgspec.Struct)


def _owned(each: Owned) -> Owned:
    return msgspec.structs.replace(each, organization=ONLY)


class SingleDriver(ReferenceDriver):
    """Puts whatever the kit seeds into the one organization."""

    claims = ReferenceDriver.claims - {"tenancy"}

    async def seed(self, world: World) -> Mapping[str, str]:
        """Seeds it for the one organization."""
        named: dict[str, Any] = {
            "organizations": (Organization(id=ONLY, name="The only one"),),
            **{
                name: tuple(_owned(each) for each in getattr(world, name))
                for name in ("agents", "logins", "flows", "experiences")
            },
        }
        found = await super().seed(msgspec.structs.replace(world, **named))
        return {**found, **{organization.id: ONLY for organization in world.organizations}}

    def headers(self, who: Login) -> Mapping[str, str]:
        """Signs them in to it."""
        return super().headers(_owned(who))

    async def save(self, who: Login, flow: Flow) -> Any:
        """Saves the flow for it."""
        return await super().save(_owned(who), _owned(flow))

    async def trigger(self, ref: TriggerRef) -> None:
        """Fires one of its triggers."""
        await super().trigger(_owned(ref))


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[SingleDriver]:
    """Makes the host."""
    yield SingleDriver(create_app(env.settings, env.database_url), env)
