"""A filter that cannot be read is shown as it was typed, with the reason at its field."""

from __future__ import annotations

import re

import pytest

from tests.plugin.pages.conftest import Site


@pytest.mark.parametrize(
    ("query", "field", "words"),
    [
        ("from=tomorrow", "from", "must be a date and time"),
        ("error=nonsense", "error", "or one of timeout"),
        ("destination=ftp%3A%2F%2Fexample.com", "destination", "http"),
        ("id=nothing", "id", "separated by commas"),
        ("from=2h&before=3h", "before", "must be later"),
    ],
)
async def test_the_reason_stands_at_its_field(site: Site, query: str, field: str, words: str) -> None:
    """The other fields keep what was typed, the state too, and no row is shown."""
    row_id = await site.put()
    answer = await site.get(f"/deliveries?{query}&agent=%3Ca%3E&status=dead")
    assert answer.status_code == 400
    assert re.search(rf'name="{field}"[^>]*aria-invalid="true" aria-describedby="wrong"', answer.text)
    assert re.search(rf'id="wrong">[^<]*{re.escape(words)}', answer.text), answer.text
    assert answer.text.count("aria-invalid") == 1
    assert 'name="agent" value="&lt;a&gt;"' in answer.text
    assert 'name="status" value="dead"' in answer.text
    assert row_id not in answer.text
    assert "actions/new?kind" not in answer.text


@pytest.mark.parametrize("query", ["status=gone", "cursor=x", "nothing=1"])
async def test_what_is_no_field_of_the_form_is_told_on_a_page_of_its_own(site: Site, query: str) -> None:
    """Nobody typed it."""
    answer = await site.get(f"/deliveries?{query}")
    assert answer.status_code == 400
    assert "aria-invalid" not in answer.text


async def test_without_the_script_times_are_utc_and_say_so(site: Site) -> None:
    """In the form, and in the window of a bulk action; what the page links to names the zone."""
    await site.put("dead")
    page = (await site.get("/deliveries?from=2026-03-01%2014:00")).text
    assert "Enqueued from (<span data-zone>UTC</span>)</label>" in page
    assert 'data-time value="2026-03-01T14:00:00.000Z"' in page
    assert "from=2026-03-01T14%3A00%3A00.000Z" in page
    preview = (await site.get("/actions/new?kind=retry&from=2026-03-01%2014:00")).text
    assert '<time datetime="2026-03-01T14:00:00Z" data-both>2026-03-01 14:00:00 UTC</time>' in preview
