"""What operators see of attempts."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import insert

from flowactions_plugin.egress.attempt import CLOSED_KEPT, FLAWED, SENT_AGAIN
from flowactions_plugin.storage.schema import attempts
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
        made = {"number": number, "status_code": 500 if number == 3 else None, "error": error, "phases": phases}
        times = {"started_at": 1_700_000_000_000, "duration_ms": 5}
        await site.queue.run(insert(attempts).values(delivery_id=row_id, **made, **times))
    page = (await site.get(f"/deliveries/{row_id}")).text
    steps = page[page.index('<ol class="attempts">') : page.index("</ol>")].split("<li>")[1:]
    assert [REFUSED in each for each in steps] == [True, True, False, False]
    notes = [None, CLOSED_KEPT, AGAIN, FLAWED]
    for step, note in zip(steps, notes, strict=True):
        assert (f'<p class="note">{note}</p>' in step) if note else ('class="note"' not in step)
    expected = ["never connected", "sent, no answer", "answered", "answered"]
    assert [each in step for each, step in zip(expected, steps, strict=True)] == [True] * 4
    shown = await command("outbox", "show", row_id, cwd=tmp_path, FLOWACTIONS_DATABASE_URL=database_url)
    lines = [each for each in shown.out.splitlines() if each.startswith("note of attempt")]
    assert lines == [f"note of attempt {number}: {note}" for number, note in enumerate(notes, 1) if note]
    assert "last error" not in shown.out
