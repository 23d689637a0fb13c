"""Mutants that mix organizations up."""

from __future__ import annotations

import msgspec

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import (
    ApiPrincipal,
    LogicAction,
    LogicActionRef,
    Node,
    Request,
)
from tests.conformance.mutants.auth import Found, backend, person
from tests.conformance.mutants.mutant import changed, mutant


def _first_organization(driver: ReferenceDriver) -> None:
    async def change(_: Request, found: Found) -> Found:
        if found is None:
            return None
        # The first of a check's own organizations: other checks run beside it.
        token = found.user_id.rpartition("-")[2]
        rows = await driver.made.host.store.find(tables.organizations)
        first = min(row["id"] for row in rows if row["id"].endswith(token))
        return msgspec.structs.replace(found, organization_id=first)

    person(driver, change)


def _organization_of_the_path(driver: ReferenceDriver) -> None:
    async def change(request: Request, found: ApiPrincipal) -> ApiPrincipal:
        agent = await driver.made.host.agent(request.path.split("/")[3])
        return msgspec.structs.replace(found, organization_id=agent.organization_id) if agent else found

    backend(driver, change)


def _secrets_of_all(driver: ReferenceDriver) -> None:
    host = driver.made.host
    ask = host.node

    async def node(organization_id: str, flow_id: str, node_id: str) -> Node | None:
        flow = await host.store.flow(flow_id)
        return await ask(flow.organization_id if flow else organization_id, flow_id, node_id)

    host.node = node  # type: ignore[method-assign]


def _experiences_by_id(driver: ReferenceDriver) -> None:
    host = driver.made.host
    ask = host.logic_action

    async def logic_action(ref: LogicActionRef) -> LogicAction | None:
        row = await host.store.one(tables.experiences, id=ref.experience_id)
        if row is None:
            return None
        own = {"organization_id": row["organization_id"], "agent_id": row["agent_id"]}
        return await ask(msgspec.structs.replace(ref, **own))

    host.logic_action = logic_action  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "first-organization",
        "Whoever is signed in belongs to the first organization.",
        changed(_first_organization),
        kills="TENANCY-1",
        spares="TENANCY-6 AUTH-5 HTTP-10 TENANCY-3 TENANCY-4",
        message="does not see exactly the deliveries of the organization",
    ),
    mutant(
        "organization-of-the-path",
        "A backend belongs to the organization of the agent that it addresses.",
        changed(_organization_of_the_path),
        kills="TENANCY-4",
        spares="AUTH-2 AUTH-4 TENANCY-1",
        message="of another organization, is answered 400",
    ),
    mutant(
        "secrets-of-all",
        "A node is looked up by flow and node, whoever's they are.",
        changed(_secrets_of_all),
        kills="TENANCY-6",
        spares="TENANCY-1 EAGER-2",
        message="a person had a request signed with another organization's secret",
    ),
    mutant(
        "experiences-by-id",
        "A logic action is looked up by the experience's id alone.",
        changed(_experiences_by_id),
        kills="TENANCY-7",
        spares="TENANCY-4 AUTH-4 LOGIC-1 LOGIC-3",
        message="of another organization, is answered 202",
    ),
]
