from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from litestar import Litestar

from flowactions_conformance.chat_provider import FakeChatProvider
from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import send_event, signature
from flowactions_conformance.serving import listen, serve, url_of
from flowactions_hookspecs import FlowActions
from flowactions_plugin.cli import main
from tests.chatting import SCOPES, chat_settings
from tests.commanding import command
from tests.support import SmallHost

PREFIX = "/api"
OTHER_EVENTS = "message", "app_mention", "app_home_opened", "team_join", "channel_rename", "user_change"

HOST = """
from tests.support import SmallHost

def make():
    return SmallHost({"BACKEND_PUBLIC_URL": "https://of-the-host.example/app/"})
"""


class Browser:
    """A person who installs the app at the fake provider."""

    def __init__(self, host: str, provider: FakeChatProvider, client: httpx.AsyncClient) -> None:
        self._routes = f"{host}{PREFIX}/integrations/chat"
        self._provider = provider
        self._client = client
        self.asked: dict[str, str] = {}

    async def connect(self) -> str:
        """Install the app; give the URL to which the provider sent the browser back."""
        started = await self._client.get(f"{self._routes}/install")
        consent, _, query = started.headers["location"].partition("?")
        self.asked = {name: values[0] for name, values in parse_qs(query).items()}
        form = {**self.asked, "workspace": self._provider.state.workspaces[0].id, "decision": "allow"}
        back: str = (await self._client.post(consent, data=form)).headers["location"]
        ended = await self._client.get(back)
        assert ended.status_code == 303
        assert urlsplit(ended.headers["location"]).query == "chat=connected"
        return back

    async def status(self) -> str:
        card = (await self._client.get(f"{self._routes}/connection")).json()["data"]
        status: str = card["status"]
        return status


async def challenged(client: httpx.AsyncClient, url: str) -> Any:
    """Verify a request URL as the provider does when an app is made; give the answer."""
    body, now = b'{"type":"url_verification","challenge":"c4ll"}', int(time.time())
    headers = {
        "x-slack-request-timestamp": str(now),
        "x-slack-signature": signature(SIGNING_SECRET, now, body),
    }
    return (await client.post(url, content=body, headers=headers)).json()


@pytest.mark.ci
async def test_what_the_manifest_names_is_what_a_running_host_uses(sqlite_url: str, tmp_path: Path) -> None:
    """Installed and told of events by the manifest alone, and asked for exactly its scopes (§2.3, §4.1, §6.2)."""
    listener, provider = listen(), FakeChatProvider()
    team, bot = provider.state.workspaces[0].id, provider.state.workspaces[0].bot_user_id
    async with serve(provider.app) as provider_url, httpx.AsyncClient(timeout=300) as client:
        settings = {**chat_settings(sqlite_url, provider_url), "BACKEND_PUBLIC_URL": url_of(listener)}
        ended = await command("chat-manifest", "--url", url_of(listener) + PREFIX, cwd=tmp_path, **settings)
        manifest = ended.document
        actions = FlowActions.load(SmallHost(settings), prefix=PREFIX)
        app = Litestar(
            [*actions.route_handlers], lifespan=[actions.lifespan], openapi_config=None, logging_config=None
        )
        async with serve(app, listener) as url:
            browser = Browser(url, provider, client)
            back = await browser.connect()
            assert manifest["oauth_config"]["redirect_urls"] == [browser.asked["redirect_uri"]]
            assert back.startswith(f"{browser.asked['redirect_uri']}?")
            assert manifest["oauth_config"]["scopes"] == {"bot": browser.asked["scope"].split(",")}
            assert browser.asked["scope"] == SCOPES

            subscribed = manifest["settings"]["event_subscriptions"]
            assert await challenged(client, subscribed["request_url"]) == {"challenge": "c4ll"}
            assert len(subscribed["bot_events"]) == 2
            for kind in (*OTHER_EVENTS, *subscribed["bot_events"]):
                assert await browser.status() == "active"
                event = {"type": kind, "tokens": {"oauth": [], "bot": [bot]}}
                answered = await send_event(
                    subscribed["request_url"], SIGNING_SECRET, int(time.time()), team, event
                )
                assert answered == 200
                if kind in subscribed["bot_events"]:
                    assert await browser.status() == "revoked"
                    await browser.connect()


def manifest_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[Any, str]:
    """Run the command; give the manifest and what was written to standard error."""
    assert main(["chat-manifest", *arguments]) == 0
    out, err = capsys.readouterr()
    assert out.isascii()
    return json.loads(out), err


def test_it_is_in_the_providers_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Names, limits and switches as the provider defines them; direct messages need the messages tab."""
    manifest, _ = manifest_of(capsys, "--url", "https://flows.example")
    assert len(manifest["display_information"]["name"]) <= 35
    assert len(manifest["display_information"]["description"]) <= 140
    assert manifest["features"] == {
        "bot_user": {"display_name": "Flow messages", "always_online": False},
        "app_home": {
            "home_tab_enabled": False,
            "messages_tab_enabled": True,
            "messages_tab_read_only_enabled": True,
        },
    }
    assert {name: value for name, value in manifest["settings"].items() if name != "event_subscriptions"} == {
        "interactivity": {"is_enabled": False},
        "org_deploy_enabled": False,
        "socket_mode_enabled": False,
        "token_rotation_enabled": False,
    }


def test_the_next_steps_are_not_in_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the manifest alone; standard error tells where the three settings come from."""
    _, err = manifest_of(capsys, "--url", "https://flows.example")
    for setting in ("CHAT_CLIENT_ID", "CHAT_CLIENT_SECRET", "CHAT_SIGNING_SECRET"):
        assert setting in err


@pytest.mark.parametrize(
    ("url", "routes"),
    [
        ("https://flows.example/", "https://flows.example"),
        ("https://flows.example/app/api", "https://flows.example/app/api"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://localhost:8000", "http://localhost:8000"),
        ("http://[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_urls_are_made_as_the_host_makes_them(
    url: str, routes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a slash too many; what no real provider accepts is told."""
    manifest, err = manifest_of(capsys, "--url", url)
    assert manifest["oauth_config"]["redirect_urls"] == [f"{routes}/integrations/chat/callback"]
    subscribed = manifest["settings"]["event_subscriptions"]
    assert subscribed["request_url"] == f"{routes}/integrations/chat/events"
    assert ("accepts no URL but https://" in err) == url.startswith("http:")


def test_the_url_is_that_of_the_settings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the environment, or of the host that is named; the option takes precedence."""
    (tmp_path / "hosted.py").write_text(HOST)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BACKEND_PUBLIC_URL", "https://of-the-environment.example")
    for arguments, expected in (
        ([], "https://of-the-environment.example"),
        (["--host", "hosted:make"], "https://of-the-host.example/app"),
        (["--host", "hosted:make", "--url", "https://of-the-option.example"], "https://of-the-option.example"),
    ):
        manifest, _ = manifest_of(capsys, *arguments)
        assert manifest["oauth_config"]["redirect_urls"] == [f"{expected}/integrations/chat/callback"]
    assert list(tmp_path.glob("*.db*")) == []


@pytest.mark.parametrize(
    ("arguments", "public_url", "told"),
    [
        ([], "", "set BACKEND_PUBLIC_URL, or add --url"),
        ([], "gopher://flows.example", "BACKEND_PUBLIC_URL must be a URL"),
        (["--url", "https://ada:s3cret@flows.example"], "", "--url must be a URL without a user name"),
        (["--url", "https://flows.example?s3cret"], "", "--url must be a URL without a query"),
    ],
)
def test_what_the_provider_would_refuse_is_refused_here(
    arguments: list[str],
    public_url: str,
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line that says what to do, status 2, no result, and nothing of a password."""
    monkeypatch.setenv("BACKEND_PUBLIC_URL", public_url)
    assert main(["chat-manifest", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert "s3cret" not in err
    assert err.count("\n") == 1
