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
