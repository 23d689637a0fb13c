"""Names of people that no database can hold: every page and route that writes them works (§5.1)."""

from __future__ import annotations

import pytest

from flowactions_hookspecs import Agent, DashboardPrincipal, Operator
from flowactions_plugin.host_answers import checked
from tests.plugin.pages.conftest import SAME_ORIGIN, Site
from tests.support import SmallHost

NAMES = ["U\0", "\ud800 Ada", "x" * 100_000, "", "a\nb\x1b[31m"]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
@pytest.mark.parametrize("role", ["operator", "changer"])
async def test_whatever_a_directory_calls_a_person_nothing_fails(site: Site, role: str, name: str) -> None:
    """The header of pages, pauses, bulk actions, the audit and a cancelled delivery show the name, cleaned and cut."""
    site.sign_in(role)
    if role == "operator":
        site.host.person = Operator(user_id="u", user_name=name, may_change=True)
    else:
        site.host.principal = DashboardPrincipal(
            organization_id="acme", user_id="u", user_name=name, may_change=True
        )
    for path in ("/", "/destinations", "/audit", "/connections"):
        assert (await site.get(path)).status_code == 200
    if role == "changer":
        row = await site.put(organization_id="acme")
        cancelled = await site.browser.post(f"/v1/webhooks/outbox/{row}/cancel", headers=SAME_ORIGIN)
        assert cancelled.status_code == 200, cancelled.text
        ((stored,),) = await site.execute("SELECT actor_name FROM flowactions_audit")
        assert len(stored) <= 200
        assert stored.isprintable()
    assert (await site.get("/audit")).status_code == 200


def test_only_what_cannot_be_kept_is_replaced() -> None:
    """A name in any script stays as it is; agents in a list are looked at, too."""
    agents = [Agent(id="a", name=name, organization_id="acme") for name in ("Zoë 👩‍💻", "A\0\udfff")]
    found = checked(SmallHost(), "agents_using", agents)
    assert [each.name for each in found] == ["Zoë 👩‍💻", "A\ufffd\ufffd"]
    assert checked(SmallHost(), "agent", agents[0]) is agents[0]
