"""What operators see of a delivery and its attempts."""

from __future__ import annotations

import re
from pathlib import Path

from flowactions_hookspecs import FlowNodeOrigin
from flowactions_plugin.egress.attempt import CLOSED_KEPT, FLAWED, SENT_AGAIN
from tests.commanding import command
from tests.plugin.pages.conftest import Site

AGAIN = f"{CLOSED_KEPT}; {SENT_AGAIN}"
REFUSED = "cannot connect to 127.0.0.1:9: refused"


async def test_the_notes_of_attempts_are_shown(site: Site, database_url: str, tmp_path: Path) -> None:
    """Beside the error, on the page and by the command; a request that was to go out again may have been read."""
    site.sign_in("operator")
    row_id = await site.put("delivered")
    await site.execute(
        "UPDATE flowactions_outbox SET attempts = 4, delivered_started_at = 1700000000000, delivered_duration_ms = 5,"
        " last_status_code = 200, delivered_phases = :notes",
        notes='{"flawed":0}',
    )
    failed = {1: (REFUSED, None), 2: (REFUSED, '{"closed":0}'), 3: (None, '{"wait":5,"closed":0,"again":0}')}
    for number, (error, phases) in failed.items():
        await site.execute(
            "INSERT INTO flowactions_attempts VALUES (:id, :number, 1700000000000, 5, :status, :error, NULL, :phases, NULL)",
            id=row_id,
            number=number,
            status=500 if number == 3 else None,
            error=error,
            phases=phases,
        )
    page = (await site.get(f"/deliveries/{row_id}")).text
    steps = page[page.index('<ol class="attempts">') : page.index("</ol>")].split("<li>")[1:]
    assert [REFUSED in each for each in steps] == [True, True, False, False]
    notes = [None, CLOSED_KEPT, AGAIN, FLAWED]
    for step, note in zip(steps, notes, strict=True):
        assert (f'<p class="note">{note}</p>' in step) if note else ('class="note"' not in step)
    expected = ["never connected", "sent, no answer", "answered", "answered"]
    assert [each in step for each, step in zip(expected, steps, strict=True)] == [True] * 4
    shown = await command(
        "outbox",
        "show",
        row_id,
        cwd=tmp_path,
        FLOWACTIONS_DATABASE_URL=database_url,
        FLOWACTIONS_ENVIRONMENT="development",
    )
    lines = [each for each in shown.out.splitlines() if each.startswith("note of attempt")]
    assert lines == [f"note of attempt {number}: {note}" for number, note in enumerate(notes, 1) if note]
    assert "last error" not in shown.out


async def test_a_delivery_is_named_by_its_flow_and_node(site: Site) -> None:
    """In the list, the heading and the title alike, whatever they hold; without a flow, by its event type."""
    site.sign_in("operator")
    hostile = FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="<b>F</b> & co", node_id="n<1>")
    named = {
        await site.put(event_type="order.placed", origin=hostile): (
            "&lt;b&gt;F&lt;/b&gt; &amp; co · n&lt;1&gt;",
            "order.placed",
        ),
        await site.put(event_type="own.event", state={"flow_id": None, "node_id": None}): (
            "own.event",
            "own.event",
        ),
    }
    listed = (await site.get("/deliveries")).text
    for row_id, (name, event_type) in named.items():
        page = (await site.get(f"/deliveries/{row_id}")).text
        assert f"<h1>{name} <span" in page
        assert f"<title>{name} {row_id[-12:]}" in page
        assert f"<dt>Event type</dt><dd>{event_type}</dd>" in page
        cell = listed[listed.index(f'/deliveries/{row_id}">') :]
        assert re.sub(r"</?span[^>]*>", "", cell[cell.index(">") + 1 : cell.index("</a>")]) == name
