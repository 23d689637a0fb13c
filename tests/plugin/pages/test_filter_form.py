"""A filter that cannot be read is shown as it was typed, with the reason at its field."""

from __future__ import annotations

import html
import re
import time

from tests.plugin.pages.conftest import Site

WRONG = [
    ("since=tomorrow", "since", "must be a date and time"),
    ("error=nonsense", "error", "or one of timeout"),
    ("destination=ftp%3A%2F%2Fexample.com", "destination", "http"),
    ("since=2h&before=3h", "before", "must be later"),
    ("q=since:tomorrow", "q", "since: must be a date and time"),
    ("q=dead", "q", "write field:value"),
    ("q=agent:b", "agent", "is given twice"),
]


async def test_the_reason_stands_at_its_field(site: Site) -> None:
    """The others keep what was typed, and no row is shown."""
    row_id = await site.put()
    for query, field, words in WRONG:
        answer = await site.get(f"/deliveries?{query}&agent=%3Ca%3E")
        assert answer.status_code == 400
        assert re.search(rf'name="{field}"[^>]*aria-invalid="true" aria-describedby="wrong"', answer.text), (
            query
        )
        assert re.search(rf'id="wrong">[^<]*{re.escape(words)}', answer.text), (query, answer.text)
        assert answer.text.count("aria-invalid") == 1
        assert 'name="agent" value="&lt;a&gt;"' in answer.text.replace(" data-time", "")
        assert row_id not in answer.text
        assert "actions/new?kind" not in answer.text


async def test_what_is_no_field_of_the_form_is_told_on_a_page_of_its_own(site: Site) -> None:
    """Nobody typed it."""
    for query in ("status=gone", "id=nothing", "cursor=x", "nothing=1"):
        answer = await site.get(f"/deliveries?{query}")
        assert (answer.status_code, "aria-invalid" in answer.text) == (400, False), query


async def test_words_and_fields_are_one_filter(site: Site) -> None:
    """What was clicked stands in the field as words, and what was typed in the form; what the form has no field for is kept."""
    await site.put(agent_id="a b", event_type="t")
    page = (await site.get("/deliveries?q=-type:u status:due&agent=a b")).text
    assert 'name="q" type="search" value="status:due agent:&#34;a b&#34; -type:u"' in page
    assert 'name="agent" value="a b"' in page
    assert '<input type="hidden" name="q" value="status:due -type:u">' in page
    assert "1 match" in page
    assert re.search(r'<a href="[^"]*" aria-current="true">due</a>', page)


async def test_the_cards_count_what_they_link_to(site: Site) -> None:
    """Also those that wait for a retry, are claimed, or wait at a destination that is paused."""
    ids = [await site.put() for _ in range(7)]
    now = int(time.time() * 1000)
    change = "UPDATE flowactions_outbox SET {} WHERE id = :id"
    later = now + 3_600_000
    await site.execute(change.format("status = 'retrying', next_attempt_at = :later"), id=ids[0], later=later)
    await site.execute(change.format("status = 'retrying'"), id=ids[1])
    await site.execute(change.format("claimed_by = 't', claimed_until = :later"), id=ids[2], later=later)
    await site.execute(change.format("destination = 'https://p.example:443'"), id=ids[3])
    await site.execute(change.format("status = 'dead', finished_at = 1, error_class = 'other'"), id=ids[4])
    await site.put("delivered")
    pause = {"destination": "https://p.example"}
    for role in ("changer", "operator"):
        site.sign_in(role)
        await site.post("/destinations/pause", pause)
        page = (await site.get()).text
        cards = re.findall(r'<dt><a href="webhooks(/deliveries[^"]*)">([^<]*)</a></dt><dd>(\d+)</dd>', page)
        assert [(name, number) for _, name, number in cards] == [
            ("Due now", "3"),
            ("Waiting", "6"),
            ("Dead", "1"),
        ]
        for link, _, number in cards:
            listed = (await site.get(html.unescape(link))).text
            assert f"{number} match" in listed
            assert listed.count('data-live="row ') == int(number)


async def test_without_the_script_times_are_utc_and_say_so(site: Site) -> None:
    """In the form, and in the window of a bulk action; what the page links to names the zone."""
    await site.put("dead")
    page = (await site.get("/deliveries?since=2026-03-01%2014:00")).text
    assert "Enqueued from (<span data-zone>UTC</span>)</label>" in page
    assert 'data-time value="2026-03-01T14:00:00.000Z"' in page
    assert "since%3A2026-03-01T14%3A00%3A00.000Z" in page
    preview = (await site.get("/actions/new?kind=retry&since=2026-03-01%2014:00")).text
    assert '<time datetime="2026-03-01T14:00:00Z" data-both>2026-03-01 14:00:00 UTC</time>' in preview
