"""Which way chat calls leave: through the proxy of the settings or none, and never to where they are redirected."""

from __future__ import annotations

import asyncio
import base64
import logging
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flowactions_conformance.chat_provider import FakeChatProvider, Fault
from flowactions_conformance.chat_provider.oauth import CLIENT_SECRET
from flowactions_conformance.serving import serve
from flowactions_hookspecs import FlowActions
from flowactions_plugin.chat.failures import ChatRefused
from flowactions_plugin.chat.provider import SlackProvider
from tests.authority import inner_authority
from tests.chatting import ChatHost, chat_host, chat_settings
from tests.loopback import listening
from tests.recorder import status
from tests.rings import sampled
from tests.support import SmallHost
from tests.swallowing import Swallowing

ENVIRONMENT = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")


class Proxy:
    """A forward proxy, with tunnels for TLS.

    Attributes:
        heads: the head of each request, as it came.
        url: where it is, with a user name and a password.
    """

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        line, *rest = head.removesuffix("\r\n\r\n").split("\r\n")
        expected = base64.b64encode(b"ada:s3c/r@t").decode()
        if f"proxy-authorization: basic {expected}".lower() not in head.lower():
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n")
            return
        method, target, version = line.split(" ")
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            parts = urlsplit(target)
            there, back = await asyncio.open_connection(parts.hostname, parts.port)
            kept = [each for each in rest if not each.lower().startswith(("proxy-", "connection:"))]
            path = parts.path + (f"?{parts.query}" if parts.query else "")
            lines = [f"{method} {path} {version}", *kept, "connection: close"]
            back.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        await asyncio.gather(self.relay(reader, back), self.relay(there, writer))

    async def relay(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        finally:
            target.close()


@asynccontextmanager
async def a_proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy()
    async with listening(proxy.handle) as port:
        proxy.url = f"http://ada:s3c%2Fr%40t@127.0.0.1:{port}"
        yield proxy


@pytest.fixture
async def trap(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[bytes]]:
    """Have the environment name a proxy that keeps whatever comes; gives that."""
    caught: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caught.append(await reader.read(65536))
        writer.write(b"HTTP/1.1 502 Trapped\r\ncontent-length: 0\r\n\r\n")

    async with listening(handle) as port:
        for name in ENVIRONMENT:
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield caught


async def everything_once(url: str, sqlite_url: str, provider: FakeChatProvider, **settings: str) -> None:
    """Connect, list, send, and disconnect."""
    actions = FlowActions.load(SmallHost(chat_settings(sqlite_url, url, **settings)))
    async with actions.lifespan():
        run = ChatHost(SmallHost(), actions, provider)
        # The test's own browser, which follows the environment, must not walk into the trap.
        with pytest.MonkeyPatch.context() as patched:
            for name in ENVIRONMENT:
                patched.delenv(name, raising=False)
            callback = await run.consent(await run.start())
        assert await run.end(callback) == {"chat": "connected"}
        for list_ in ("channels", "members"):
            assert (await run.browser.get(f"/integrations/chat/{list_}")).status_code == 200
        assert (await run.message()).status == "sent"
        assert (await run.message(chatActionType="dm", chatUserId="U000GRACE")).status == "sent"
        assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204
    assert not provider.state.is_installed(provider.state.workspaces[0])


async def test_proxies_of_the_environment_are_not_used(trap: list[bytes], sqlite_url: str) -> None:
    """No call goes to them, with or without a token."""
    provider = FakeChatProvider()
    async with serve(provider.app) as url:
        await everything_once(url, sqlite_url, provider)
    assert trap == []


async def test_the_configured_proxy_is_used_for_every_call(
    trap: list[bytes], sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In absolute form for http; its user name and password are shown neither to the provider nor in the log."""
    caplog.set_level(logging.DEBUG, "flowactions")
    provider = FakeChatProvider()
    async with serve(provider.app) as url, a_proxy() as proxy:
        await everything_once(url, sqlite_url, provider, FLOWACTIONS_EGRESS_PROXY=proxy.url)
        lines = [head.partition("\r\n")[0] for head in proxy.heads]
        assert len(lines) == len(provider.calls)
        assert all(f" {url}/api/{method}" in line for line, method in zip(lines, provider.calls, strict=True))
    assert {"oauth.v2.access", "auth.test", "chat.postMessage", "conversations.open", "users.list"} <= set(
        provider.calls
    )
    assert trap == []
    assert "s3c" not in caplog.text


async def test_a_proxy_that_refuses_fails_the_call(caplog: pytest.LogCaptureFixture) -> None:
    """Unreachable, or with another password: the message is not sent, and no log shows the proxy's address."""
    async with a_proxy() as proxy:
        wrong = proxy.url.replace("s3c", "0ther")
        for url in (wrong, "http://ada:s3c%2Fr%40t@127.0.0.1:1"):
            for api in ("http://127.0.0.1:1/api/", "https://127.0.0.1:1/api/"):
                provider = SlackProvider(api, None, None, url)
                try:
                    with pytest.raises(ChatRefused) as refused:
                        await provider.post_message("xoxb-1", "C1", "hi")
                finally:
                    await provider.aclose()
                assert refused.value.code == "unreachable"
                assert not any(part in refused.value.detail for part in ("s3c", "0ther", "ada"))
    assert not any(part in caplog.text for part in ("s3c", "0ther", "ada"))


async def test_https_uses_a_tunnel_that_hides_the_token(
    trap: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy sees neither token nor text."""
    pem, server = inner_authority(tmp_path)
    client = ssl.create_default_context(cadata=pem)
    monkeypatch.setattr("aiohttp.connector._SSL_CONTEXT_VERIFIED", client)
    arrived: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.append(await reader.readuntil(b"\r\n\r\n"))
        body = b'{"ok":true,"ts":"1.0001"}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        await reader.read()

    async with listening(handle, tls=server) as port, a_proxy() as proxy:
        for through, tunnels in ((proxy.url, 1), (None, 1)):
            provider = SlackProvider(f"https://127.0.0.1:{port}/api/", None, None, through)
            try:
                assert await provider.post_message("xoxb-hush", "C1", "hi") == "1.0001"
            finally:
                await provider.aclose()
            assert len(proxy.heads) == tunnels
    assert proxy.heads[0].startswith(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n")
    assert "xoxb-hush" not in proxy.heads[0]
    assert len(arrived) == 2
    assert all(b"xoxb-hush" in head and b"roxy" not in head for head in arrived)
    assert trap == []


async def test_each_call_has_a_connection_of_its_own() -> None:
    """The path of one that was kept may be lost without a word, and a call cannot be repeated: the provider knows no ids."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(status(200, "content-type: application/json", body=b'{"ok":true,"ts":"1.0001"}'))

    receiver = Swallowing(answer)
    async with listening(receiver.serve) as port:
        provider = SlackProvider(f"http://127.0.0.1:{port}/api/", None, None)
        try:
            for calls in (1, 2):
                assert await provider.post_message("xoxb-1", "C1", "hi") == "1.0001"
                assert receiver.connections == calls
                receiver.lose()
        finally:
            await provider.aclose()


@sampled("status", [301, 302, 303, 307, 308], size=1)
async def test_redirects_are_not_followed(
    status: int, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The target gets neither token nor client secret."""
    elsewhere = FakeChatProvider()
    async with serve(elsewhere.app) as other, chat_host(sqlite_url) as run:

        def redirect(method: str) -> None:
            location = ("location", f"{other}/api/{method}")
            run.provider.faults[method].append(Fault(status, b'{"ok":true,"ts":"1"}', (location,)))

        for method in ("oauth.v2.access", "auth.test"):
            redirect(method)
            assert await run.connect() == {"chat": "error", "reason": "unreachable"}
        assert await run.connect() == {"chat": "connected"}
        for method in ("chat.postMessage", "users.conversations", "users.list"):
            redirect(method)
        assert (await run.message()).reason == "send_failed"
        for list_ in ("channels", "members"):
            assert (await run.browser.get(f"/integrations/chat/{list_}")).status_code == 502
    assert elsewhere.calls == []
    assert f"HTTP status {status}" in caplog.text
    assert CLIENT_SECRET not in caplog.text


async def test_the_sdk_is_imported_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long, so a thread does it, once; where none can be had, the call is refused as others are."""
    threads: list[str] = []

    def failing() -> Any:
        threads.append(threading.current_thread().name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("flowactions_plugin.chat.provider._import_client", failing)
    provider = SlackProvider("http://127.0.0.1:9/", None, None)
    for _ in range(2):
        with pytest.raises(ChatRefused) as caught:
            await provider.identify("xoxb-made-up")
        assert caught.value.code == "unreachable"
    assert len(threads) == 2
    assert threading.main_thread().name not in threads
