from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from flowactions_conformance.chat_provider import Channel, Fault, Member, Workspace
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_plugin.chat.pickers import CACHED_CHOICES, FRESH_SECONDS, PAUSED, Choice, Page, PageCache
from tests.chatting import JSON, ChatHost, chat_host
from tests.rings import sampled
from tests.waiting import SAFETY_SECONDS, until, within

CHANNELS = "/integrations/chat/channels"
MEMBERS = "/integrations/chat/members"
DOWN = Fault(503, b"<html>down</html>")
WITHOUT_ADVICE = Fault(429)


@pytest.fixture
async def run(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    monkeypatch.chdir(tmp_path)
    async with chat_host(sqlite_url) as running:
        yield running


@pytest.fixture
async def big(tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
    """A workspace of 5,000 channels, whose lists begin with empty pages."""
    monkeypatch.chdir(tmp_path)
    channels = [Channel(id=f"C{number:04}", name=f"c-{number:04}") for number in range(5000)]
    workspace = Workspace(id="T1", name="Big", bot_user_id="UB", channels=channels, members=[], empty_pages=3)
    async with chat_host(sqlite_url, [workspace]) as running:
        assert await running.connect(workspace="T1") == {"chat": "connected"}
        running.provider.calls.clear()
        yield running


async def page(run: ChatHost, route: str, **query: str) -> Any:
    answer = await run.browser.get(route, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def everything(run: ChatHost, route: str, **query: str) -> list[str]:
    """Follow the cursors to the end."""
    seen: list[str] = []
    cursor = ""
    while True:
        found = await page(run, route, cursor=cursor, **query)
        seen += [choice["id"] for choice in found["data"]]
        if found["nextCursor"] is None:
            return seen
        cursor = found["nextCursor"]


async def test_channels_are_found_by_name(run: ChatHost) -> None:
    """A channel that the app has not joined is marked; archived ones are left out."""
    await run.connect()
    found = await page(run, CHANNELS)
    assert {choice["label"]: choice["note"] for choice in found["data"]} == {
        "#general": None,
        "#orders": None,
        "#random": "The app has not joined this channel.",
        "#leads": "Private channel",
    }
    assert (found["nextCursor"], found["notice"]) == (None, None)
    found = await page(run, CHANNELS, search="#ORD")
    assert [choice["id"] for choice in found["data"]] == ["C0ORDERS"]
    assert (await page(run, CHANNELS, search="app has not"))["data"] == []


async def test_a_whole_id_finds_its_choice(run: ChatHost) -> None:
    """So an editor shows the name of an id that was saved; a part of an id finds nothing."""
    await run.connect()
    assert [choice["label"] for choice in (await page(run, CHANNELS, search="c0orders"))["data"]] == ["#orders"]
    assert await everything(run, MEMBERS, search="U0GRACE") == ["U0GRACE"]
    assert (await page(run, CHANNELS, search="C0ORD"))["data"] == []


async def test_members_are_people(run: ChatHost) -> None:
    """Bots, deactivated accounts and the built-in user are left out (§2.3); each of a person's names matches."""
    run.provider.state.workspaces[0].members += [Member(id="U1", name="zoe", real_name="Example, Zoë")]
    await run.connect()
    assert await everything(run, MEMBERS) == ["U0GRACE", "U0LINUS", "U1"]
    assert await everything(run, MEMBERS, search="zoë") == ["U1"]
    assert await everything(run, MEMBERS, search="@ZO") == ["U1"]


async def test_without_groups_read_a_notice_explains_missing_private_channels(run: ChatHost) -> None:
    """Some workspaces do not grant groups:read: the public channels are listed."""
    assert (await run.connect(scope="chat:write,channels:read"))["reason"] == "missing_scope"
    found = await page(run, CHANNELS)
    assert [choice["label"] for choice in found["data"]] == ["#general", "#orders", "#random"]
    assert "groups:read" in found["notice"]
    card = await run.card()
    assert card["missingScopes"] == ["groups:read", "users:read", "im:write"]
    assert (card["status"], "Reconnect" in card["advice"]) == ("active", True)


async def test_a_large_workspace_can_be_paged_through(big: ChatHost) -> None:
    """With empty pages first, each of 5,000 channels is found exactly once."""
    assert await everything(big, CHANNELS) == [f"C{number:04}" for number in range(5000)]


async def test_a_search_reads_thousands_of_names_in_one_answer(
    big: ChatHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of 5,000 is found; a longer search text makes no further call."""
    monkeypatch.setattr("flowactions_plugin.chat.pickers.SEARCH_SECONDS", SAFETY_SECONDS)
    async with within(5):
        found = await page(big, CHANNELS, search="c-4999")
    assert [choice["id"] for choice in found["data"]] == ["C4999"]
    calls = big.provider.calls.count("conversations.list")
    assert calls <= 9  # three empty pages, and six of 999
    for text in ("c-499", "c-49", "c-4", "C-4998"):
        assert (await page(big, CHANNELS, search=text))["data"]
    assert big.provider.calls.count("conversations.list") == calls


async def test_pages_that_are_too_large_are_requested_in_smaller_sizes(
    big: ChatHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where 999 names exceed the size limit, fewer are requested from then on."""
    for module in ("answers", "provider"):
        monkeypatch.setattr(f"flowactions_plugin.chat.{module}.MAX_BYTES", 40_000)
    found = await page(big, CHANNELS, search="c-0999")
    assert [choice["id"] for choice in found["data"]] == ["C0999"]
    calls = big.provider.calls.count("conversations.list")
    assert calls < 40  # three empty pages, a page of 999, and 25 of 200
    assert await everything(big, CHANNELS) == [f"C{number:04}" for number in range(5000)]
    monkeypatch.setattr("flowactions_plugin.chat.answers.MAX_BYTES", 4_000)
    monkeypatch.setattr("flowactions_plugin.chat.provider.MAX_BYTES", 4_000)
    monkeypatch.setattr("flowactions_plugin.chat.pickers.FRESH_SECONDS", -1.0)
    found = await page(big, CHANNELS, search="c-0998")
    assert (found["data"], found["notice"]) == ([], PAUSED)


async def test_a_short_retry_after_is_honoured(big: ChatHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is complete."""
    monkeypatch.setattr("flowactions_plugin.chat.pickers.SEARCH_SECONDS", SAFETY_SECONDS)
    big.provider.faults["conversations.list"].extend([RATE_LIMITED])
    found = await page(big, CHANNELS, search="c-4999")
    assert [choice["id"] for choice in found["data"]] == ["C4999"]
    assert found["notice"] is None


@sampled(
    "fault", [RATE_LIMITED, WITHOUT_ADVICE, RATE_LIMITED._replace(headers=(("retry-after", "30"),))], size=1
)
@pytest.mark.parametrize("pages_before", [0, 4])
async def test_a_throttled_search_returns_partial_results_and_a_cursor(
    big: ChatHost, fault: Fault, pages_before: int
) -> None:
    """On the first page or later: in time, with the choices found, a notice and a cursor."""
    big.provider.state.workspaces[0].page_size = 10
    passing = [Fault(delay=0, passes=True)] * pages_before
    big.provider.faults["conversations.list"].extend([*passing, *[fault] * 20])
    async with within(5.5):
        found = await page(big, CHANNELS, search="c-00")
    assert "throttling" in found["notice"]
    assert len(found["data"]) == (10 if pages_before else 0)
    big.provider.faults["conversations.list"].clear()
    rest = await page(big, CHANNELS, search="c-00", cursor=found["nextCursor"])
    both = [choice["id"] for choice in found["data"] + rest["data"]]
    assert both == [f"C{number:04}" for number in range(len(both))]
    assert (len(rest["data"]), rest["notice"]) == (20, None)


async def test_an_outage_during_a_search_returns_partial_results(big: ChatHost) -> None:
    """Before the first page, it is an error with advice."""
    big.provider.state.workspaces[0].page_size = 10
    big.provider.faults["conversations.list"].extend([Fault(passes=True)] * 4 + [DOWN])
    found = await page(big, CHANNELS, search="c-00")
    assert (len(found["data"]), "the list is incomplete" in found["notice"]) == (10, True)
    big.provider.faults["conversations.list"].append(DOWN)
    answer = await big.browser.get(CHANNELS, params={"cursor": "bmV4dDowMDAwMDk="})
    assert (answer.status_code, answer.json()["code"]) == (502, "chat_refused")
    assert "try again later" in answer.json()["detail"]


@pytest.mark.ci
async def test_a_slow_page_ends_the_search_at_its_time_limit(big: ChatHost) -> None:
    """With the choices of the earlier pages."""
    big.provider.state.workspaces[0].page_size = 10
    slow = Fault(200, b'{"ok":true}', delay=20)
    big.provider.faults["conversations.list"].extend([Fault(passes=True)] * 4 + [slow])
    async with within(6):
        found = await page(big, CHANNELS, search="c-00")
    assert (len(found["data"]), "the list is incomplete" in found["notice"]) == (10, True)


@pytest.mark.parametrize("route", [CHANNELS, MEMBERS])
async def test_an_invalid_search_is_answered_with_its_problem(run: ChatHost, route: str) -> None:
    """No connection, an unknown cursor, a text that is too long, and a revoked token."""
    answer = await run.browser.get(route)
    assert (answer.status_code, answer.json()["code"]) == (409, "not_connected")
    await run.connect()
    for query in ({"cursor": "made-up!"}, {"cursor": "c" * 501}, {"search": "s" * 101}):
        answer = await run.browser.get(route, params=query)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
    run.provider.state.tokens_of(run.provider.state.workspaces[0])[0].dead = "token_revoked"
    answer = await run.browser.get(route)
    assert (answer.status_code, answer.json()["code"]) == (502, "chat_refused")
    assert "Reconnect" in answer.json()["detail"]

    async def is_revoked() -> bool:
        return bool((await run.card())["status"] == "revoked")

    await until(is_revoked)


@sampled(
    "body",
    [
        b"[]",
        b"[1]",
        b"null",
        b'"x"',
        b"{}",
        b'{"ok":true}',
        b'{"ok":true,"channels":7}',
        b"\xff\xfe",
        b'{"ok":true,"channels":[7,null,{},{"id":3,"name":"x"},{"id":"C1"},{"id":"C2","name":"fine","is_member":true}]}',
        b'{"ok":true,"channels":[],"response_metadata":{"next_cursor":7}}',
    ],
    size=5,
)
async def test_a_malformed_page_gives_an_error_or_its_valid_choices(run: ChatHost, body: bytes) -> None:
    """With advice."""
    await run.connect()
    headers = JSON
    run.provider.faults["conversations.list"].append(Fault(200, body, headers))
    answer = await run.browser.get(CHANNELS)
    assert answer.status_code in {200, 502}
    if answer.status_code == 200:
        assert [choice["label"] for choice in answer.json()["data"]] in ([], ["#fine"])


async def test_cached_pages_are_separate_for_each_organization(run: ChatHost) -> None:
    """Also of one workspace."""
    await run.connect()
    run.sign_in("globex")
    run.provider.state.workspaces[1].channels[:] = [Channel(id="CG", name="globex-only")]
    await run.connect(workspace="T0GLOBEX")
    run.sign_in("acme")
    assert "CG" not in await everything(run, CHANNELS)
    run.sign_in("globex")
    assert await everything(run, CHANNELS) == ["CG"]


def test_cached_pages_expire_and_are_limited_in_number() -> None:
    """After half a minute, or when newer ones need the room."""
    now = [0.0]
    cache = PageCache(lambda: now[0])
    one = Page([Choice("C", "#c", None, ("c",))], None)
    cache.put("a", one)
    now[0] = FRESH_SECONDS
    assert cache.get("a") is one
    now[0] += 0.001
    assert cache.get("a") is None
    many = Page([one.choices[0]] * (CACHED_CHOICES // 4), None)
    for number in range(20):
        cache.put(number, many)
        cache.put(number, many)
    assert [number for number in range(20) if cache.get(number)] == [17, 18, 19]
