"""Mutants of who may call the plugin's routes."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import ApiPrincipal, DashboardPrincipal, Request
from tests.conformance.mutants.mutant import changed, mutant

Found = DashboardPrincipal | None


def person(driver: ReferenceDriver, change: Callable[[Request, Found], Awaitable[Found]]) -> None:
    """Changes who the host says is signed in."""
    host = driver.made.host
    ask = host.dashboard_principal

    async def dashboard_principal(request: Request) -> Found:
        return await change(request, await ask(request))

    host.dashboard_principal = dashboard_principal  # type: ignore[method-assign]


def backend(
    driver: ReferenceDriver, change: Callable[[Request, ApiPrincipal], Awaitable[ApiPrincipal]]
) -> None:
    """Changes which backend the host says calls."""
    host = driver.made.host
    ask = host.api_principal

    async def api_principal(request: Request) -> ApiPrincipal | None:
        found = await ask(request)
        return found and await change(request, found)

    host.api_principal = api_principal  # type: ignore[method-assign]


async def _somebody(driver: ReferenceDriver) -> DashboardPrincipal:
    row = (await driver.made.host.store.find(tables.people))[0]
    return DashboardPrincipal(
        organization_id=row["organization_id"], user_id=row["id"], user_name=row["name"], may_change=True
    )


def _back_door(driver: ReferenceDriver) -> None:
    async def change(request: Request, found: Found) -> Found:
        return found if "authorization" in request.headers else await _somebody(driver)

    person(driver, change)


def _any_bearer(driver: ReferenceDriver) -> None:
    async def change(request: Request, found: Found) -> Found:
        bearer = request.headers.get("authorization", "").startswith("Bearer ")
        return await _somebody(driver) if found is None and bearer else found

    person(driver, change)


def _nobody_may_change(driver: ReferenceDriver) -> None:
    async def change(_: Request, found: Found) -> Found:
        return found and msgspec.structs.replace(found, may_change=False)

    person(driver, change)


def _tokens(driver: ReferenceDriver, given: Callable[[str], str], same: Callable[[str, str], bool]) -> None:
    """Gives out other tokens than the reference host, and compares them in another way."""
    store = driver.made.host.store
    issue, ask, sign_in = store.issue_token, store.token, driver.headers
    issued: set[str] = set()

    async def issue_token(kind: str, organization_id: str, *, token: str | None = None, **values: Any) -> str:
        made = await issue(kind, organization_id, token=token, **values)
        issued.add(made)
        return made

    async def find(kind: str, token: str | None) -> Any:
        for each in sorted(issued):
            row = await ask(kind, each) if token and same(given(each), token) else None
            if row is not None:
                return row
        return None

    def headers(who: Any) -> dict[str, str]:
        return {"authorization": f"Bearer {given(sign_in(who)['authorization'].removeprefix('Bearer '))}"}

    store.issue_token, store.token = issue_token, find  # type: ignore[method-assign]
    driver.headers = headers  # type: ignore[method-assign]


def token_part(value: dict[str, str]) -> str:
    """Encode a header or the claims of a JWT."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _signature_ignored(driver: ReferenceDriver) -> None:
    _tokens(
        driver,
        lambda token: f"{token}.{_digest(token)}",
        lambda real, token: real.partition(".")[0] == token.partition(".")[0],
    )


MUTANTS = [
    mutant(
        "back-door",
        "Without a credential, a developer's back door signs the first person in.",
        changed(_back_door),
        kills="AUTH-1 HTTP-1",
        spares="AUTH-2 AUTH-4 AUTH-5 TENANCY-1",
        message="GET /v1/webhooks/outbox without a credential is answered 200",
    ),
    mutant(
        "any-bearer",
        "Whatever Bearer token is given, somebody is signed in.",
        changed(_any_bearer),
        kills="AUTH-1 AUTH-2",
        spares="AUTH-4 AUTH-5 TENANCY-1",
        message="with the credential 'garbage' is answered 200",
    ),
    mutant(
        "nobody-may-change",
        "may_change is never true.",
        changed(_nobody_may_change),
        kills="AUTH-5",
        spares="AUTH-1",
        message="a person who may change things is refused at POST /v1/webhooks/outbox/retry",
    ),
    mutant(
        "signature-ignored",
        "The signature behind a token is cut off and not compared.",
        changed(_signature_ignored),
        kills="AUTH-6",
        spares="AUTH-1 AUTH-2 AUTH-5",
        message="is answered when a person's credential comes with its middle character changed, with its last character changed",
    ),
]
