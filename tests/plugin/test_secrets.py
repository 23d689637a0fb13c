"""Values of secret settings, and user names, passwords and queries of URL settings, are seen nowhere."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import traceback
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

from flowactions_hookspecs import FlowActions, FlowActionsError, Node, SettingsInvalid
from flowactions_plugin.egress.attempt import Aborted
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.settings.model import READERS, Settings, read_settings
from flowactions_plugin.storage.database import Database
from tests.recorder import recorder, status
from tests.sending import Message
from tests.support import SmallHost, a_walk, development, services_of, transport_of

MARKER = "MaRkEr7"
"""Of letters and a digit only, so that no encoding hides it, except base64: see `seen`."""

SECRETS = [
    "CHAT_CLIENT_SECRET",
    "CHAT_SIGNING_SECRET",
    "CHAT_BOT_TOKEN",
    "FLOWACTIONS_ENCRYPTION_KEYS",
    "AUTH_WEBHOOK_SIGNING_SECRET",
    "FLOWACTIONS_ALERTS_SECRET",
]
URLS = [
    "FLOWACTIONS_EGRESS_PROXY",
    "FLOWACTIONS_DATABASE_URL",
    "BACKEND_PUBLIC_URL",
    "FLOWACTIONS_ALERTS_URL",
    "CHAT_API_URL",
    "CHAT_AUTHORIZE_URL",
]

CHARACTERS = "@/:?#[]%&=+ \t\n\r\\\"'<>|^`{}é€１。\u2028\x00\x7f"
MANGLINGS = {
    **{f"U+{ord(each):04X} before": f"{each}{MARKER}" for each in CHARACTERS},
    **{f"U+{ord(each):04X} after": f"{MARKER}{each}" for each in CHARACTERS},
    **{f"U+{ord(each):04X} around": f"a{each}{MARKER}{each}b" for each in CHARACTERS},
    "plain": MARKER,
    "a port": f"1:80/{MARKER}",
    "another host": f"@{MARKER}:99999/",
    "a host in brackets": f"[::{MARKER}]",
    "half a percent": f"%4{MARKER}",
    "a percent that is not UTF-8": f"%ff{MARKER}",
    "a percent line feed": f"%0a{MARKER}",
    "a lone surrogate": f"\ud800{MARKER}",
    "base64": base64.b64encode(MARKER.encode() * 7).decode(),
    "long": MARKER * 400,
    "a list": f"{MARKER},{MARKER}",
    "braces of a format": f"{{0}}{{{MARKER}!r:>9}}%(x)s%s",
}
"""What somebody may have put where a password belongs."""


def forms(name: str, mangled: str) -> list[str]:
    """Put a mangled secret at every place of a setting where one may be."""
    if name in SECRETS:
        return [mangled, f"whsec_{mangled}", f"xoxb-{mangled}"]
    scheme = "postgresql" if name == "FLOWACTIONS_DATABASE_URL" else "http"
    return [
        f"{scheme}://user:{mangled}@127.0.0.1:1",
        f"{scheme}://{mangled}@127.0.0.1:1",
        f"{scheme}://{mangled}:word@127.0.0.1:1/db",
        f"{scheme}://127.0.0.1:1/db?password={mangled}",
        f"{scheme}://127.0.0.1:1/db#{mangled}",
        f"{scheme}://user:word@127.0.0.1:{mangled}@[",
    ]


def seen(*texts: str) -> bool:
    """Tell whether the marker is in one of the texts, as it is or encoded."""
    encoded = [base64.b64encode(MARKER.encode() * 3)[at : at + 8].decode() for at in (4, 8, 12)]
    folded = [text.lower() for text in texts]
    return any(MARKER.lower() in text for text in folded) or any(
        part in text for part in encoded for text in texts
    )


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Everything that is logged at any level."""
    caplog.set_level(logging.DEBUG)
    return caplog


def logged(watch: pytest.LogCaptureFixture) -> str:
    """Give what was logged, with tracebacks and attributes."""
    return watch.text + "".join(str(record.__dict__) for record in watch.records)


def test_every_setting_that_may_hold_a_secret_is_tried() -> None:
    """By its name."""
    assert set(SECRETS) | set(URLS) == {
        name for name in READERS if name.endswith(("_URL", "_PROXY", "_SECRET", "_TOKEN", "_KEYS"))
    }


@pytest.mark.parametrize(
    "name",
    [
        SECRETS[0],
        *(pytest.param(each, marks=pytest.mark.ci) for each in [*SECRETS[1:], *URLS]),
    ],
)
def test_loading_shows_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: pytest.LogCaptureFixture
) -> None:
    """Neither the error, its traceback, the log, nor the repr of what was built holds the value."""
    monkeypatch.chdir(tmp_path)
    loaded = 0
    # Of the characters, each setting but the first one has every third.
    step = 1 if name == SECRETS[0] else 3
    for what in [*list(MANGLINGS)[:-11:step], *list(MANGLINGS)[-11:]]:
        mangled = MANGLINGS[what]
        for text in forms(name, mangled):
            error, said = loading({name: text})
            assert not seen(*said, logged(watch)), (what, text)
            watch.clear()  # or each of the next ones would look at it again
            if error is None:
                loaded += 1
            else:
                assert type(error) is SettingsInvalid, (what, text)
                assert f"{name} must " in str(error)
                assert (error.__cause__, error.__context__) == (None, None)
    may_hold_one = {*SECRETS, "FLOWACTIONS_EGRESS_PROXY", "FLOWACTIONS_DATABASE_URL"}
    assert loaded or name not in may_hold_one - {"FLOWACTIONS_ENCRYPTION_KEYS"}


def loading(settings: dict[str, str]) -> tuple[Exception | None, list[str]]:
    """Load a host with these settings; give the error, and everything that is said of it or of what was built."""
    try:
        host = SmallHost(settings)
        services = services_of(host)
    except Exception as exc:  # noqa: BLE001  none but one of them is right, which the caller checks
        return exc, [str(exc), repr(exc), traceback.format_exc()]
    built = [services, *vars(services).values(), *vars(services._outbox).values()]
    read = services._settings
    return None, [repr(each) for each in (read, list(read.__rich_repr__()), *built) if each is not host]


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-proxy.invalid:3128", "answering"])
async def test_a_delivery_shows_nothing_of_the_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch, watch: pytest.LogCaptureFixture
) -> None:
    """Whatever the proxy does, the reason that tenants read holds neither its user name nor its password."""

    async def resolve(name: str, port: int) -> list[str]:
        return ["8.8.8.8"]

    if host.endswith(".invalid:3128"):
        monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    tried = 0
    guard = EgressGuard(development=False, resolve=resolve)
    async with recorder() as proxy:
        proxy.answer = lambda number: (
            status(407, "proxy-authenticate: Basic") if number % 3 else b"nonsense\r\n\r\n"
        )
        where = proxy.url.removesuffix("/hook").removeprefix("http://") if host == "answering" else host
        for what, mangled in MANGLINGS.items():
            for userinfo in (f"user:{mangled}", mangled, f"{mangled}:word"):
                try:
                    settings = read_settings({"FLOWACTIONS_EGRESS_PROXY": f"http://{userinfo}@{where}"})
                except SettingsInvalid:
                    continue
                tried += 1
                transport = OutboundTransport(guard, 1, settings.egress_proxy)
                try:
                    sender = Sender(transport, guard.resolve, lambda: 0.0, lambda: 0.0)
                    for url in ("http://example.com/", "https://example.com/"):
                        outcome = await sender.send(Message(url=url), None)
                        reason = outcome.reason if isinstance(outcome, Aborted) else outcome.error or ""
                        assert not seen(repr(outcome), logged(watch)), (what, outcome)
                        if host != "answering" or url.startswith("https"):
                            assert reason.startswith("the egress proxy did not connect")
                finally:
                    await transport.aclose()
    assert tried >= 30


def no_such_host(*asked: object, **options: object) -> NoReturn:
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


async def test_a_running_host_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch: pytest.LogCaptureFixture
) -> None:
    """Neither the answers of the routes, the results of nodes, nor the log of a whole host hold a value."""
    monkeypatch.chdir(tmp_path)
    for what in [*list(MANGLINGS)[:-11:9], *list(MANGLINGS)[-11:]]:
        mangled = MANGLINGS[what]
        settings = development(
            f"sqlite:///{tmp_path / 'f.db'}",
            CHAT_API_URL="http://127.0.0.1:1/api/",
            BACKEND_PUBLIC_URL="http://127.0.0.1:1",
            CHAT_CLIENT_ID="client",
        )
        for name in [*SECRETS, "FLOWACTIONS_EGRESS_PROXY"]:
            for text in forms(name, mangled):
                if usable(name, text):
                    settings[name] = text
                    break
        said = await used(FlowActions.load(SmallHost(settings)))
        assert not seen(*said, logged(watch)), what


def usable(name: str, text: str) -> bool:
    try:
        read_settings({name: text})
    except SettingsInvalid:
        return False
    return True


async def used(actions: FlowActions) -> list[str]:
    """Use a host in every way that needs a secret, with a provider that cannot be reached; give what it says."""
    said: list[str] = []
    transport = transport_of(actions)
    async with (
        actions.lifespan(),
        httpx.AsyncClient(transport=transport, base_url="http://host", cookies={"a": "b"}) as client,
    ):
        node = Node(id="n", type="webhook", config={"webhookUrl": "http://127.0.0.1:1/", "webhookBody": "{}"})
        chat = Node(id="c", type="chat_message", config={"chatMessageText": "x", "chatChannelId": "C1"})
        said += [repr(await actions.reach(a_walk(), each)) for each in (node, chat)]
        signed = {"svix-id": "1", "svix-timestamp": "1", "svix-signature": "v1,x"}
        for method, path, options in (
            ("GET", "/integrations/chat/install", {}),
            ("GET", "/integrations/chat/connection", {}),
            ("GET", "/integrations/chat/channels", {}),
            ("POST", "/integrations/chat/send-message", {"json": {"text": "x"}}),
            ("POST", "/integrations/chat/events", {"content": b"{}", "headers": {"x-slack-signature": "v0=x"}}),
            ("POST", "/webhooks/auth", {"content": b"{}", "headers": signed}),
            ("GET", "/v1/webhooks/outbox", {}),
        ):
            answer = await client.request(method, path, follow_redirects=False, **options)
            said += [answer.text, str(answer.headers)]
            if "location" in answer.headers and "callback" in answer.headers["location"]:
                query = answer.headers["location"].partition("?")[2]
                said.append((await client.get(f"/integrations/chat/callback?{query}")).text)
        await asyncio.sleep(0)
    return said


@pytest.mark.parametrize("mangled", ["plain", "a percent line feed", "U+0026 around", "long"])
async def test_a_database_that_cannot_be_reached_shows_nothing(
    mangled: str, watch: pytest.LogCaptureFixture
) -> None:
    """Nor one that refuses the password: the log says why without it."""
    for text in forms("FLOWACTIONS_DATABASE_URL", MANGLINGS[mangled]):
        try:
            url = read_settings({"FLOWACTIONS_DATABASE_URL": text}).database_url
        except SettingsInvalid:
            continue
        said = ""
        try:
            async with Database(url) as database, database.read():
                pass
        except FlowActionsError:
            said = traceback.format_exc()
        assert not seen(said, logged(watch)), text


def test_settings_show_nothing_of_themselves() -> None:
    """However a struct is printed."""
    settings = Settings(chat_bot_token=MARKER)
    assert not seen(repr(settings), str(settings), f"{settings!r}", repr(list(settings.__rich_repr__())))
