from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import httpx
import pytest
from litestar import Litestar, Request, post
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient

from flowactions_conformance.chat_provider import (
    Channel,
    FakeChatProvider,
    Fault,
    sample_workspace,
)
from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import signature
from flowactions_conformance.chat_provider.oauth import CLIENT_ID, CLIENT_SECRET
from flowactions_conformance.chat_provider.state import ALL_SCOPES
from flowactions_conformance.serving import serve

SCOPES = ",".join(ALL_SCOPES)


class Running:
    def __init__(self, provider: FakeChatProvider, url: str) -> None:
        self.provider = provider
        self.url = url
        self.token = provider.state.add_token(provider.state.workspaces[0])

    async def ask(self, path: str, method: str = "POST", token: str = "", **sending: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        async with httpx.AsyncClient(headers=headers, timeout=300) as client:
            return await client.request(method, f"{self.url}{path}", **sending)

    def client(self, token: str | None = None) -> AsyncWebClient:
        value = self.token.value if token is None else token
        return AsyncWebClient(token=value, base_url=f"{self.url}/api/", retry_handlers=[], timeout=300)


class SharedServer:
    """One server for the tests of this module, of which each sets its own app. To start and stop a server takes longer than most of them."""

    def __init__(self) -> None:
        self.app: Any = FakeChatProvider().app
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


@pytest.fixture(scope="module")
async def server() -> AsyncIterator[SharedServer]:
    made = SharedServer()
    async with serve(made) as made.url:
        yield made


@pytest.fixture
def run(server: SharedServer) -> Running:
    provider = FakeChatProvider()
    server.app = provider.app
    return Running(provider, server.url)


async def refused(call: Any) -> dict[str, Any]:
    with pytest.raises(SlackApiError) as error:
        await call
    data: dict[str, Any] = error.value.response.data
    return data


async def test_auth_test_tells_whose_token_it_is(run: Running) -> None:
    """The answer has the real one's fields, and the scopes are a header."""
    answer = await run.client().auth_test()
    assert {"ok", "url", "team", "user", "team_id", "user_id", "bot_id"} <= set(answer.data)
    assert answer.headers["x-oauth-scopes"] == SCOPES
    assert answer.headers["content-type"] == "application/json;charset=utf-8"


async def test_a_bad_token_and_none_are_told_apart(run: Running) -> None:
    """A wrong token is invalid_auth; no token is not_authed; both with HTTP 200."""
    assert (await refused(run.client("xoxb-nope").auth_test()))["error"] == "invalid_auth"
    answer = await run.ask("/api/auth.test")
    assert (answer.status_code, answer.json()["error"]) == (200, "not_authed")


async def test_a_message_is_posted_with_a_rising_timestamp(run: Running) -> None:
    """Each message has its own, later, timestamp."""
    client = run.client()
    first = await client.chat_postMessage(channel="C0GENERAL", text="*hi*")
    second = await client.chat_postMessage(channel="C0GENERAL", text="again")
    assert second["ts"] > first["ts"]
    assert [(m.channel, m.text, m.ts) for m in run.provider.messages] == [
        ("#general", "*hi*", first["ts"]),
        ("#general", "again", second["ts"]),
    ]


async def test_timestamps_follow_the_clock_and_are_unique() -> None:
    """Messages of one instant differ, and a later one shows its own time."""
    now = [1_700_000_000.0]
    state = FakeChatProvider(clock=lambda: now[0]).state
    posted = [state.post(state.workspaces[0], "C", "#c", "hi").ts for _ in range(2)]
    now[0] += 60
    posted.append(state.post(state.workspaces[0], "C", "#c", "hi").ts)
    assert posted == ["1700000000.000000", "1700000000.000001", "1700000060.000000"]


REFUSED: list[tuple[str, dict[str, str], str]] = [
    ("chat.postMessage", {"channel": "C00RANDOM", "text": "hi"}, "not_in_channel"),
    ("chat.postMessage", {"channel": "C00000OLD", "text": "hi"}, "is_archived"),
    ("chat.postMessage", {"channel": "nope", "text": "hi"}, "channel_not_found"),
    ("chat.postMessage", {"channel": "C0GENERAL", "text": ""}, "no_text"),
    ("chat.postMessage", {"channel": "C0GENERAL", "text": "x" * 40_001}, "msg_too_long"),
    # A direct-message channel that nobody has opened, and two that nobody can open.
    *(
        ("chat.postMessage", {"channel": channel, "text": "hi"}, "channel_not_found")
        for channel in ("D000GRACE", "D0ROBOT", "DSLACKBOT")
    ),
    ("conversations.open", {"users": "U000ROBOT"}, "cannot_dm_bot"),
    ("conversations.open", {"users": "U0000GONE"}, "user_disabled"),
    ("conversations.open", {"users": "U?"}, "user_not_found"),
    ("conversations.join", {"channel": "C00000OLD"}, "is_archived"),
    ("conversations.join", {"channel": "G000LEADS"}, "channel_not_found"),
    *(("conversations.list", {"limit": limit}, "invalid_limit") for limit in ("0", "-1", "many")),
    *(("conversations.list", {"cursor": cursor}, "invalid_cursor") for cursor in ("made up", "bmV4dDotNQ==")),
    ("conversations.list", {"types": "channels"}, "invalid_types"),
]


@pytest.mark.parametrize(("method", "arguments", "error"), REFUSED)
async def test_what_cannot_be_done_is_refused(
    run: Running, method: str, arguments: dict[str, str], error: str
) -> None:
    """With the provider's own codes."""
    scopes = [*ALL_SCOPES, "channels:join"]
    token = run.provider.state.add_token(run.provider.state.workspaces[0], scopes=scopes)
    assert (await refused(run.client(token.value).api_call(method, data=arguments)))["error"] == error


async def test_a_direct_message_goes_through_its_channel(run: Running) -> None:
    """Opening gives a channel to which messages can be posted; the second time, the same one comes with no_op and already_open."""
    client = run.client()
    first, again = [await client.conversations_open(users="U000GRACE") for _ in range(2)]
    assert first.data == {"ok": True, "channel": {"id": "D000GRACE"}}
    assert again.data == {**first.data, "no_op": True, "already_open": True}
    await client.chat_postMessage(channel=first["channel"]["id"], text="psst")
    assert run.provider.messages[0].channel == "@grace"


async def test_joining_a_channel_lets_the_app_post(run: Running) -> None:
    """After a join, the channel takes messages."""
    scopes = ["chat:write", "channels:join"]
    token = run.provider.state.add_token(run.provider.state.workspaces[0], scopes=scopes)
    client = run.client(token.value)
    joined = await client.conversations_join(channel="C00RANDOM")
    assert joined["channel"]["is_member"] is True
    assert (await client.chat_postMessage(channel="C00RANDOM", text="hi"))["ok"]


async def test_revoking_a_token_makes_it_worthless(run: Running) -> None:
    """After auth.revoke, every call with the token is token_revoked."""
    assert (await run.client().auth_revoke())["revoked"] is True
    assert (await refused(run.client().auth_test()))["error"] == "token_revoked"


@pytest.mark.parametrize(
    ("method", "arguments", "needed"),
    [
        ("chat.postMessage", {"channel": "C0GENERAL", "text": "hi"}, "chat:write"),
        ("conversations.open", {"users": "U000GRACE"}, "im:write"),
        ("conversations.join", {"channel": "C00RANDOM"}, "channels:join"),
        ("conversations.list", {}, "channels:read"),
        ("conversations.list", {"types": "private_channel"}, "groups:read"),
        ("users.list", {}, "users:read"),
    ],
)
async def test_a_missing_scope_is_named(
    run: Running, method: str, arguments: dict[str, str], needed: str
) -> None:
    """The refusal says what is needed and what there is."""
    token = run.provider.state.add_token(run.provider.state.workspaces[0], scopes=["pins:read"])
    answer = await refused(run.client(token.value).api_call(method, data=arguments))
    assert (answer["error"], answer["needed"], answer["provided"]) == ("missing_scope", needed, "pins:read")


@pytest.mark.parametrize("method", ["conversations.list", "users.list", "auth.revoke", "oauth.v2.access"])
async def test_json_is_refused_where_the_provider_takes_forms(run: Running, method: str) -> None:
    """A JSON body is accepted only by the four methods that take it."""
    answer = await run.ask(f"/api/{method}", token=run.token.value, json={"limit": 1})
    accepted = await run.ask("/api/auth.test", token=run.token.value, json={})
    assert answer.json()["error"] == "invalid_arguments"
    assert accepted.json()["ok"]


async def test_a_big_workspace_comes_in_pages_with_empty_ones_first() -> None:
    """Every channel is seen once, over pages that may be empty while a cursor remains."""
    channels = [Channel(id=f"C{number}", name=f"c{number}") for number in range(2500)]
    big = sample_workspace("Big")
    big.channels, big.page_size, big.empty_pages = channels, 100, 2
    provider = FakeChatProvider([big])
    async with serve(provider.app) as url:
        client = Running(provider, url).client()
        seen: list[str] = []
        sizes: list[int] = []
        cursor = ""
        while True:
            page = await client.conversations_list(types="public_channel", limit=999, cursor=cursor or None)
            seen += [channel["id"] for channel in page["channels"]]
            sizes.append(len(page["channels"]))
            cursor = page["response_metadata"]["next_cursor"]
            if not cursor:
                break
            assert cursor.endswith("=")
    assert seen == [channel.id for channel in channels]
    assert sizes[:3] == [0, 0, 100]


async def test_channels_are_listed_by_kind(run: Running) -> None:
    """Kinds and archived channels are as asked for; a record has the real one's fields."""
    client = run.client()
    public = (await client.conversations_list())["channels"]
    both = await client.conversations_list(types="public_channel,private_channel", exclude_archived=True)
    assert [channel["name"] for channel in public] == ["general", "orders", "random", "old-project"]
    assert [channel["name"] for channel in both["channels"]] == ["general", "orders", "random", "leads"]
    assert {"id", "name", "is_private", "is_archived", "is_member"} <= set(public[0])
    assert both["response_metadata"] == {"next_cursor": ""}


async def test_the_built_in_user_does_not_say_that_it_is_a_bot(run: Running) -> None:
    """Callers must exclude it by its id, as with the real provider."""
    members = {member["id"]: member for member in (await run.client().users_list())["members"]}
    assert members["USLACKBOT"]["is_bot"] is False
    assert members["U0000GONE"]["deleted"] is True
    assert {"id", "name", "deleted", "is_bot", "real_name", "profile"} <= set(members["U000GRACE"])
    assert {"display_name", "image_48"} <= set(members["U000GRACE"]["profile"])


class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "status", "body", "retry_after"),
        [
            ("ratelimited", 429, b'{"ok":false,"error":"ratelimited"}', "1"),
            ("empty429", 429, b"", None),
            ("html503", 503, b"<html>Service unavailable</html>", None),
            ("garbage", 200, b"not json", None),
        ],
    )
    async def test_an_answer_by_token_text(
        self, run: Running, fault: str, status: int, body: bytes, retry_after: str | None
    ) -> None:
        """A token can ask for a 429, with and without a usable Retry-After, and for bodies that no JSON parser takes."""
        answer = await run.ask("/api/users.list", token=f"xoxb-fault-{fault}")
        assert (answer.status_code, answer.content) == (status, body)
        assert answer.headers.get("retry-after") == retry_after

    @pytest.mark.ci
    async def test_a_slow_answer(self, run: Running) -> None:
        """A token can ask for an answer that comes after the caller's effect_timeout."""
        headers = {"authorization": "Bearer xoxb-fault-slow"}
        async with httpx.AsyncClient(headers=headers, timeout=httpx.Timeout(60, read=0.2)) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{run.url}/api/auth.test")

    async def test_a_dropped_connection(self, run: Running) -> None:
        """A token can ask for the connection to break."""
        with pytest.raises(aiohttp.ClientError):
            await run.client("xoxb-fault-drop").auth_test()

    async def test_a_code_for_posting(self, run: Running) -> None:
        """A token can ask chat.postMessage to fail with any code, and everything else to work."""
        client = run.client("xoxb-fault-fail-ekm_access_denied")
        assert (await client.auth_test())["ok"]
        answer = await refused(client.chat_postMessage(channel="C0GENERAL", text="hi"))
        assert answer["error"] == "ekm_access_denied"

    @pytest.mark.parametrize("method", ["auth.test", "oauth.v2.access"])
    async def test_a_queued_fault_is_used_once(self, run: Running, method: str) -> None:
        """The next call of a method fails, also of the one that is called without a token; the one after works."""
        run.provider.faults[method].append(Fault(503, b"<html>"))
        answers = [await run.ask(f"/api/{method}", token=run.token.value) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [503, 200]
        assert run.provider.calls == [method, method]


class TestOAuth:
    async def test_the_consent_page_leads_to_a_token_once(self, run: Running) -> None:
        """Allow gives a code that can be exchanged once, for a token with the scopes asked for."""
        redirect = "http://127.0.0.1:1/callback"
        query = {"client_id": CLIENT_ID, "scope": SCOPES, "redirect_uri": redirect, "state": "a&b"}
        page = await run.ask("/oauth/v2/authorize", "GET", params=query)
        assert "Acme" in page.text
        form = {**query, "workspace": "T0000ACME", "decision": "allow"}
        sent_back = await run.ask("/oauth/v2/authorize", data=form)
        answer = parse_qs(urlsplit(sent_back.headers["location"]).query)
        assert answer["state"] == ["a&b"]
        exchange = {
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "code": answer["code"][0],
            "redirect_uri": redirect,
        }
        token = await run.client("").oauth_v2_access(**exchange)
        assert (token["token_type"], token["scope"], token["team"]["id"]) == ("bot", SCOPES, "T0000ACME")
        assert (await run.client(token["access_token"]).auth_test())["ok"]
        assert (await refused(run.client("").oauth_v2_access(**exchange)))["error"] == "invalid_code"

    async def test_cancelling_sends_the_reason_back(self, run: Running) -> None:
        """Cancel redirects with access_denied."""
        redirect = "http://127.0.0.1:1/callback?tab=2"
        form = {"client_id": CLIENT_ID, "decision": "cancel", "redirect_uri": redirect, "state": "s"}
        sent_back = await run.ask("/oauth/v2/authorize", data=form)
        assert sent_back.headers["location"] == f"{redirect}&state=s&error=access_denied"

    @pytest.mark.parametrize("change", [{"client_id": "x"}, {"redirect_uri": "javascript:alert(1)"}])
    @pytest.mark.parametrize("verb", ["GET", "POST"])
    async def test_a_request_that_cannot_be_redirected_ends_here(
        self, run: Running, verb: str, change: dict[str, str]
    ) -> None:
        """An unknown client, or nowhere to go back to, is a plain 400."""
        query = {"client_id": CLIENT_ID, "redirect_uri": "http://127.0.0.1:1/callback", **change}
        answer = await run.ask("/oauth/v2/authorize", verb, params=query)
        assert answer.status_code == 400

    async def test_the_consent_page_escapes_what_it_is_given(self, run: Running) -> None:
        """Nothing from the address becomes markup."""
        hostile = '"><script>alert(1)</script>'
        query = {"client_id": CLIENT_ID, "redirect_uri": "http://x/", "state": hostile, "scope": hostile}
        page = await run.ask("/oauth/v2/authorize", "GET", params=query)
        assert page.status_code == 200
        assert "<script" not in page.text

    async def test_the_app_authenticates_with_basic_as_well(self, run: Running) -> None:
        """Id and secret may come in the header; a wrong secret there is refused."""
        redirect = "http://127.0.0.1:1/callback"
        code = run.provider.state.add_code(run.provider.state.workspaces[0], redirect, ["chat:write"])
        form = {"code": code, "redirect_uri": redirect}
        wrong = await run.ask("/api/oauth.v2.access", data=form, auth=(CLIENT_ID, "x"))
        right = await run.ask("/api/oauth.v2.access", data=form, auth=(CLIENT_ID, CLIENT_SECRET))
        assert (wrong.status_code, wrong.json()["error"]) == (200, "bad_client_secret")
        assert right.json()["enterprise"] is None
        assert "bot_id" not in right.json()

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"client_id": "x"}, "invalid_client_id"),
            ({"client_secret": "x"}, "bad_client_secret"),
            ({"redirect_uri": "x"}, "bad_redirect_uri"),
            ({"code": "x"}, "invalid_code"),
        ],
    )
    async def test_a_wrong_exchange_is_refused(self, run: Running, change: dict[str, str], error: str) -> None:
        """Each wrong part of an exchange has its own code."""
        redirect = "http://127.0.0.1:1/callback"
        code = run.provider.state.add_code(run.provider.state.workspaces[0], redirect, ["chat:write"])
        exchange = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "code": code}
        call = run.client("").oauth_v2_access(**{**exchange, "redirect_uri": redirect, **change})
        assert (await refused(call))["error"] == error


class TestLifecycle:
    async def test_uninstalling_kills_the_tokens(self, run: Running) -> None:
        """After an uninstall, the workspace's tokens are refused."""
        await run.provider.uninstall(run.provider.state.workspaces[0])
        assert (await refused(run.client().auth_test()))["error"] == "account_inactive"

    async def test_events_are_sent_signed(self) -> None:
        """Uninstall and revocation are told in the provider's wrapper, signed over the bytes sent."""
        seen: list[dict[str, Any]] = []

        @post("/events")
        async def events(request: Request[Any, Any, Any]) -> None:
            body, stamp = await request.body(), int(request.headers["x-slack-request-timestamp"])
            assert request.headers["x-slack-signature"] == signature(SIGNING_SECRET, stamp, body)
            seen.append(await request.json())

        async with serve(Litestar([events])) as url:
            provider = FakeChatProvider(events_url=f"{url}/events", clock=lambda: 1_700_000_000.9)
            workspace = provider.state.workspaces[0]
            token = provider.state.add_token(workspace)
            await provider.revoke(token)
            assert token.dead == "token_revoked"
            await provider.uninstall(workspace)
        revoked = {"type": "tokens_revoked", "tokens": {"oauth": [], "bot": [workspace.bot_user_id]}}
        assert [event["event"] for event in seen] == [revoked, {"type": "app_uninstalled"}, revoked]
        assert {(event["type"], event["team_id"], event["event_time"]) for event in seen} == {
            ("event_callback", "T0000ACME", 1_700_000_000)
        }
        assert len({event["event_id"] for event in seen}) == 3


async def test_messages_can_be_inspected(run: Running) -> None:
    """What was posted is there as JSON, and the page that shows it asks nothing of other hosts."""
    sent = await run.client().chat_postMessage(channel="C00ORDERS", text="a &lt;b&gt;")
    shown = (await run.ask("/inspect/messages", "GET")).json()["data"]
    page = await run.ask("", "GET")
    message = {"channel_id": "C00ORDERS", "channel": "#orders", "text": "a &lt;b&gt;", "ts": sent["ts"]}
    assert shown == [{"workspace": "Acme", **message}]
    assert page.headers["content-type"].startswith("text/html")
    assert "http" not in page.text


def test_events_are_signed_as_published() -> None:
    """The provider's published example gives the published signature."""
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V"
        b"&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text="
        b"&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554"
        b"%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    assert signature("8f742231b10e8888abcd99yyyzzz85a5", 1531420618, body) == (
        "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503"
    )


async def test_a_limited_workspace_refuses_what_is_too_much(run: Running) -> None:
    """A list's limit is for the workspace; after the announced time, calls succeed again."""
    now = [1_700_000_000.0]
    run.provider.state.clock = lambda: now[0]
    run.provider.state.workspaces[0].limited = True
    client = run.client()
    assert (await client.users_list())["cache_ts"] == 1_700_000_000
    for _ in range(19):
        await client.users_list()
    with pytest.raises(SlackApiError) as error:
        await client.users_list()
    answer = error.value.response
    assert (answer.status_code, answer["error"], answer.headers["retry-after"]) == (429, "ratelimited", "60")
    assert (await client.users_conversations())["ok"]
    now[0] += 60
    assert (await client.users_list())["ok"]


async def test_a_channel_takes_a_message_a_second_and_bursts_of_five(run: Running) -> None:
    """In a limited workspace, and each channel for itself; whoever was refused waits for a second."""
    now = [1_700_000_000.25]
    run.provider.state.clock = lambda: now[0]
    client = run.client()

    async def taken(channel: str = "C0GENERAL") -> int:
        """Post until it is refused, ten times at the most."""
        for number in range(10):
            try:
                await client.chat_postMessage(channel=channel, text="hi")
            except SlackApiError as error:
                answer = error.response
                assert (answer.status_code, answer["error"]) == (429, "ratelimited")
                assert answer.headers["retry-after"] == "1"
                return number
        return 10

    assert await taken() == 10
    run.provider.state.workspaces[0].limited = True
    assert [await taken(), await taken("C00ORDERS"), await taken()] == [5, 5, 0]
    now[0] += 0.5
    assert await taken() == 0
    now[0] += 0.5
    assert await taken() == 1
    now[0] += 3.25
    assert await taken() == 3
    now[0] += 3600
    assert await taken() == 5
