from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowactions_conformance.chat_provider import Channel, Fault, Member, Workspace
from flowactions_conformance.chat_provider.faults import RATE_LIMITED
from flowactions_plugin.chat import directory
from flowactions_plugin.chat.failures import THROTTLED, ChatRefused
from flowactions_plugin.chat.pickers import (
    FRESH_SECONDS,
    MAX_CHOICES,
    PAUSED,
    START,
    Choice,
    Page,
    PageCache,
    search,
)
from flowactions_plugin.chat.store import StoredConnection
from tests.chatting import JSON, ChatHost, chat_host
from tests.rings import sampled
from tests.waiting import SAFETY_SECONDS, until, within

PEOPLE = 50_000
CHANNELS = "/integrations/chat/channels"
MEMBERS = "/integrations/chat/members"
DOWN = Fault(503, b"<html>down</html>")
WITHOUT_ADVICE = Fault(429)


@pytest.fixture
async def run(sqlite_url: str) -> AsyncIterator[ChatHost]:
    async with chat_host(sqlite_url) as running:
        yield running


@pytest.fixture
async def big(sqlite_url: str) -> AsyncIterator[ChatHost]:
    """A workspace of 5,000 channels that the app is not in, whose lists begin with empty pages."""
    channels = [Channel(id=f"C{number:04}", name=f"c-{number:04}", is_member=False) for number in range(5000)]
    workspace = Workspace(id="T1", name="Big", bot_user_id="UB", channels=channels, members=[], empty_pages=3)
    async with chat_host(sqlite_url, [workspace]) as running:
        assert await running.connect(workspace="T1") == {"chat": "connected"}
        running.provider.calls.clear()
        yield running


@pytest.fixture
async def huge(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[ChatHost, list[float]]]:
    """A workspace of 50,000 people that limits calls as the provider does, and a clock for both sides."""
    now = [1_700_000_000.0]
    monkeypatch.setattr("flowactions_plugin.chat.directory.PageCache", lambda _: PageCache(lambda: now[0]))
    members = [
        Member(id=f"U{number:010}", name=f"p{number}", real_name=f"Person {number}") for number in range(PEOPLE)
    ]
    workspace = Workspace(
        id="T012345678", name="Huge", bot_user_id="U9999999999", channels=[], members=members, limited=True
    )
    async with chat_host(sqlite_url, [workspace]) as running:
        running.provider.state.clock = lambda: now[0]
        assert await running.connect(workspace=workspace.id) == {"chat": "connected"}
        running.provider.calls.clear()
        yield running, now


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
    assert [choice["id"] for choice in found["data"]] == ["C00ORDERS"]
    assert (await page(run, CHANNELS, search="app has not"))["data"] == []


async def test_a_whole_id_finds_its_choice(run: ChatHost) -> None:
    """So an editor shows the name of an id that was saved; a part of an id finds nothing."""
    await run.connect()
    assert [choice["label"] for choice in (await page(run, CHANNELS, search="c00orders"))["data"]] == [
        "#orders"
    ]
    assert await everything(run, MEMBERS, search="U000GRACE") == ["U000GRACE"]
    assert (await page(run, CHANNELS, search="C00ORD"))["data"] == []


async def test_members_are_people(run: ChatHost) -> None:
    """Bots, deactivated accounts and the built-in user are left out (§2.3); each of a person's names matches."""
    run.provider.state.workspaces[0].members += [Member(id="U1", name="zoe", real_name="Example, Zoë")]
    await run.connect()
    assert await everything(run, MEMBERS) == ["U000GRACE", "U000LINUS", "U1"]
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


async def test_pages_that_are_too_large_are_requested_in_a_smaller_size(
    big: ChatHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the answer with 999 names exceeds the size limit. Where 200 do, too, the list is incomplete."""
    monkeypatch.setattr("flowactions_plugin.chat.pickers.SEARCH_SECONDS", SAFETY_SECONDS)
    for size in (4_000, 250_000):
        for module in ("answers", "provider"):
            monkeypatch.setattr(f"flowactions_plugin.chat.{module}.MAX_BYTES", size)
        found = await page(big, CHANNELS, search="c-0999")
        if size == 4_000:
            assert (found["data"], found["notice"]) == ([], PAUSED)
    assert [choice["id"] for choice in found["data"]] == ["C0999"]
    assert await everything(big, CHANNELS) == [f"C{number:04}" for number in range(5000)]


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
    big: ChatHost, monkeypatch: pytest.MonkeyPatch, fault: Fault, pages_before: int
) -> None:
    """On the first page or later: in time, with the choices found, a notice and a cursor.

    Until the delay is over that the provider asked for, nobody calls it.
    """
    big.provider.state.workspaces[0].page_size = 10
    passing = [Fault(delay=0, passes=True)] * pages_before
    big.provider.faults["conversations.list"].extend([*passing, *[fault] * 20])
    async with within(5.5):
        found = await page(big, CHANNELS, search="c-00")
    assert "throttling" in found["notice"]
    assert len(found["data"]) == (10 if pages_before else 0)
    big.provider.faults["conversations.list"].clear()
    monkeypatch.setattr("flowactions_plugin.chat.pickers.MIN_PAUSE_SECONDS", 0.0)
    big.provider.calls.clear()
    rest = await page(big, CHANNELS, search="c-00", cursor=found["nextCursor"])
    if fault.headers == (("retry-after", "30"),):
        assert (rest["data"], rest["notice"], big.provider.calls) == ([], found["notice"], [])
        return
    both = [choice["id"] for choice in found["data"] + rest["data"]]
    assert both == [f"C{number:04}" for number in range(len(both))]
    assert (len(rest["data"]), rest["notice"]) == (20, None)


@pytest.mark.parametrize(
    ("answer", "advice"), [(DOWN, "try again later"), (Fault(200, b"<html>"), "Ask the people who operate")]
)
async def test_an_outage_during_a_search_returns_partial_results(
    big: ChatHost, answer: Fault, advice: str
) -> None:
    """Before the first page, it is an error with advice; so is an answer that cannot be read."""
    big.provider.state.workspaces[0].page_size = 10
    big.provider.faults["conversations.list"].extend([Fault(passes=True)] * 4 + [answer])
    found = await page(big, CHANNELS, search="c-00")
    assert (len(found["data"]), "the list is incomplete" in found["notice"]) == (10, True)
    big.provider.faults["conversations.list"].append(answer)
    refused = await big.browser.get(CHANNELS, params={"cursor": "others:bmV4dDowMDAwMDk="})
    assert (refused.status_code, refused.json()["code"]) == (502, "chat_refused")
    assert advice in refused.json()["detail"]


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


async def test_a_malformed_page_gives_its_valid_choices(run: ChatHost) -> None:
    """What cannot be read is left out."""
    await run.connect()
    body = b'{"ok":true,"channels":[7,null,{},{"id":3,"name":"x"},{"id":"C1"},{"id":"C2","name":"fine"}]}'
    run.provider.faults["conversations.list"].append(Fault(200, body, JSON))
    found = await page(run, CHANNELS, cursor="others:")
    assert [choice["label"] for choice in found["data"]] == ["#fine"]


async def test_lists_are_kept_for_a_workspace(run: ChatHost) -> None:
    """Its organizations share them; another workspace has others."""
    workspaces = run.provider.state.workspaces
    workspaces[1].channels[:] = [Channel(id="CG", name="globex-only")]
    await run.connect()
    expected = await everything(run, CHANNELS)
    assert "CG" not in expected
    run.sign_in("globex")
    await run.connect(workspace=workspaces[1].id)
    assert await everything(run, CHANNELS) == ["CG"]
    run.sign_in("umbrella")
    await run.connect()
    run.provider.calls.clear()
    assert await everything(run, CHANNELS) == expected
    assert run.provider.calls == []


async def test_searches_at_once_make_each_call_once(big: ChatHost) -> None:
    """While a person types, and of several people."""
    found = await asyncio.gather(*(page(big, CHANNELS, search=text) for text in ["c-0", "c-01", "c-02"] * 5))
    assert all(each["data"] for each in found)
    assert big.provider.calls.count("conversations.list") == 4  # three empty pages, and one of 999


async def test_channels_that_the_app_is_in_come_first(big: ChatHost) -> None:
    """Wherever they stand in the workspace's list, and once."""
    channels = big.provider.state.workspaces[0].channels
    channels[4321].is_member = channels[17].is_member = True
    assert (await everything(big, CHANNELS))[:3] == ["C0017", "C4321", "C0000"]
    found = await page(big, CHANNELS, search="c-4321")
    assert (found["data"][0]["id"], found["data"][0]["note"]) == ("C4321", None)
    assert sorted(await everything(big, CHANNELS)) == sorted(channel.id for channel in channels)


async def test_an_id_is_asked_for_by_itself(huge: tuple[ChatHost, list[float]]) -> None:
    """The last of 50,000 is one call away; a bot and an archived channel are no choices; an unknown id is searched as a name."""
    run, _ = huge
    members, channels = (
        run.provider.state.workspaces[0].members,
        run.provider.state.workspaces[0].channels,
    )
    channels += [
        Channel(id="C0000000001", name="joined"),
        Channel(id="C0000000002", name="other", is_member=False),
        Channel(id="C0000000003", name="old", is_archived=True),
    ]
    members[1].is_bot = True
    found = await page(run, MEMBERS, search=" U0000049990")
    assert [choice["label"] for choice in found["data"]] == ["P49990"]
    for number, label in ((1, ["#joined"]), (2, ["#other"]), (3, [])):
        found = await page(run, CHANNELS, search=f"C000000000{number}")
        assert ([choice["label"] for choice in found["data"]], found["nextCursor"]) == (label, None)
    assert (await page(run, MEMBERS, search="U0000000001"))["data"] == []
    assert run.provider.calls == ["users.info", *["conversations.info"] * 3, "users.info"]
    channels.append(Channel(id="C0000000004", name="CHANNEL2024"))
    assert await everything(run, CHANNELS, search="CHANNEL2024") == ["C0000000004"]


@pytest.mark.ci
async def test_the_last_of_50_000_people_is_found_by_name(huge: tuple[ChatHost, list[float]]) -> None:
    """A person who waits as the notice says has found it after three minutes; then it is found at once, whatever is typed."""
    run, now = huge
    began, cursor, slow = now[0], "", 0
    while True:
        found = await page(run, MEMBERS, search="Person 49990", cursor=cursor)
        if found["data"]:
            break
        cursor = found["nextCursor"]
        if found["notice"] == PAUSED:  # on a machine that is busy, a page takes too long: it is asked for again
            slow += 1
            assert slow <= 20
        elif found["notice"] is not None:
            assert "throttling" in found["notice"]
            now[0] += 30
    assert [choice["id"] for choice in found["data"]] == ["U0000049990"]
    assert now[0] - began <= 180
    assert run.provider.calls.count("users.list") <= 51 + 4 + slow  # pages, and calls that were refused
    run.provider.calls.clear()
    async with within(5):
        assert await everything(run, MEMBERS, search="person 49991") == ["U0000049991"]
    assert run.provider.calls == []


CONNECTED = dict.fromkeys(
    ("team_id", "team_name", "bot_user_id", "app_id", "installed_by_id", "installed_by_name"), "x"
)


def connected(missing: str = "", scopes: str = "") -> StoredConnection:
    """Make a connection with these scopes."""
    rest: dict[str, Any] = {**CONNECTED, "default_channel": None, "status_reason": None, "sealed_token": b""}
    more: dict[str, Any] = {"organization_id": "acme", "installed_at": 0, "status": "active"}
    return StoredConnection(**rest, **more, missing_scopes=missing, scopes=scopes)


@pytest.mark.parametrize(
    ("channel", "scopes", "found"),
    [
        ({"is_member": True}, "", None),
        ({"is_member": True, "is_archived": True}, "", ("is_archived", "error")),
        ({"is_member": False}, "", ("not_in_channel", "error")),
        ({"is_member": False}, "chat:write.public", None),
        ({"is_member": False, "is_private": True}, "chat:write.public", ("not_in_channel", "error")),
        ({}, "chat:write", ("not_checked", "warning")),
    ],
)
def test_what_a_channels_record_says(channel: dict[str, Any], scopes: str, found: object) -> None:
    """Whether a message reaches it; what the record does not say is a warning (§2.3)."""
    problem = directory._channel_problem(connected(scopes=scopes), channel)
    assert (problem and (problem.code, problem.severity)) == found


@pytest.mark.parametrize(
    ("member", "user", "found"),
    [
        ({}, "U1", None),
        ({"deleted": True, "is_bot": True}, "U1", ("user_disabled", "error")),
        ({"is_bot": True}, "U1", ("cannot_dm_bot", "error")),
        ({}, "USLACKBOT", ("cannot_dm_bot", "warning")),
    ],
)
def test_what_a_members_record_says(member: dict[str, Any], user: str, found: object) -> None:
    """Likewise."""
    problem = directory._member_problem(user, member)
    assert (problem and (problem.code, problem.severity)) == found


@pytest.mark.parametrize(
    ("code", "missing", "found"),
    [
        ("channel_not_found", "", ("channel_not_found", "error")),
        ("channel_not_found", "groups:read", ("channel_not_found", "warning")),
        ("user_not_found", "groups:read", ("user_not_found", "error")),
        ("ratelimited", "", ("not_checked", "warning")),
    ],
)
def test_what_a_refusal_says_of_a_target(code: str, missing: str, found: object) -> None:
    """Without the right to list private channels, one that is not found may be private."""
    problem = directory._refused_problem(connected(missing=missing), ChatRefused(code))
    assert (problem.code, problem.severity) == found


def test_cached_pages_expire_and_are_limited_in_number() -> None:
    """After some minutes, or when newer ones need the room."""
    now = [0.0]
    cache = PageCache(lambda: now[0])
    one = Page([Choice("C", "#c", None, ("c",))], None)
    cache.put("a", one, FRESH_SECONDS)
    now[0] = FRESH_SECONDS - 1
    assert cache.get("a") == (one, 1.0)
    now[0] += 1
    assert cache.get("a") is None
    many = Page([one.choices[0]] * (MAX_CHOICES // 4), None)
    for number in range(20):
        cache.put(number, many, 9.0)
        cache.put(number, many, 9.0)
    assert [number for number in range(20) if cache.get(number)] == [16, 17, 18, 19]
    for number in range(2000):
        cache.put(number, Page([], "more"), 9.0)
    assert sum(cache.get(number) is not None for number in range(2000)) == MAX_CHOICES // 100


async def test_a_search_that_is_throttled_at_once_can_be_continued() -> None:
    """Though the provider does not say after how long; any other refusal of the first page is the search's."""

    async def refused(code: str) -> Page:
        async def first(at: str | None) -> Page:
            assert at is None
            raise ChatRefused(code)

        return await search(first, "", START)

    assert await refused("ratelimited") == Page([], START, THROTTLED)
    with pytest.raises(ChatRefused, match="did not answer"):
        await refused("unreachable")
