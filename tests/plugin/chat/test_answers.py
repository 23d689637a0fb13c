"""Whatever a chat provider answers: a value that can be used, or a refusal."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import pytest

from flowactions_conformance.chat_provider import Fault
from flowactions_plugin.chat.answers import MAX_BYTES, read_answer
from flowactions_plugin.chat.failures import AnswerTooLarge, ChatRefused
from flowactions_plugin.chat.provider import SlackProvider
from tests.chatting import ChatHost, chat_host
from tests.loopback import listening
from tests.rings import sampled

JSON: Final = {"content-type": "application/json;charset=utf-8"}

CALLS: Final[Mapping[str, Callable[[SlackProvider], Awaitable[Any]]]] = {
    "chat.postMessage": lambda provider: provider.post_message("xoxb-1", "C1", "hi"),
    "conversations.open": lambda provider: provider.open_dm("xoxb-1", "U1"),
    "auth.test": lambda provider: provider.identify("xoxb-1"),
    "oauth.v2.access": lambda provider: provider.exchange("code", "http://host/callback"),
    "auth.revoke": lambda provider: provider.revoke("xoxb-1"),
    "conversations.list": lambda provider: provider.other_channels("xoxb-1", None, 10),
    "users.conversations": lambda provider: provider.joined_channels("xoxb-1", None, 10, private=True),
    "users.list": lambda provider: provider.members("xoxb-1", None, 10),
}

GOOD: Final[Mapping[str, dict[str, Any]]] = {
    "chat.postMessage": {"ok": True, "channel": "C1", "ts": "1503435956.000247", "message": {"text": "hi"}},
    "conversations.open": {"ok": True, "channel": {"id": "D1"}},
    "auth.test": {"ok": True, "team": "Acme", "team_id": "T1", "user_id": "U1"},
    "oauth.v2.access": {"ok": True, "access_token": "xoxb-2", "scope": "chat:write", "app_id": "A1"},
    "auth.revoke": {"ok": True, "revoked": True},
    "conversations.list": {
        "ok": True,
        "channels": [{"id": "C1", "name": "one", "is_member": False}],
        "response_metadata": {"next_cursor": "bmV4dA=="},
    },
    "users.conversations": {
        "ok": True,
        "channels": [{"id": "C1", "name": "one"}],
        "response_metadata": {"next_cursor": ""},
    },
    "users.list": {
        "ok": True,
        "members": [{"id": "U1", "name": "ada", "real_name": "Ada", "profile": {"display_name": "A"}}],
        "response_metadata": {"next_cursor": ""},
    },
}

SURROGATE: Final = b"\\ud800"

HOSTILE: Final[Mapping[str, tuple[int, dict[str, str], bytes]]] = {
    **{
        name: (200, JSON, body)
        for name, body in {
            "nested too deeply": b"[" * 50_000,
            "nested too deeply, and closed": b'{"ok":true,"ts":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
            "surrogate in the code": b'{"ok":false,"error":"' + SURROGATE + b'"}',
            "control characters in the code": b'{"ok":false,"error":"a\\nchat_message node n sent\\u0000"}',
            "an empty code": b'{"ok":false,"error":""}',
            "a number as code": b'{"ok":false,"error":7}',
            "a list as code": b'{"ok":false,"error":["ratelimited"]}',
            "no code": b'{"ok":false}',
            "ok as text": b'{"ok":"true","ts":"1","error":"x y"}',
            "ok as a number": b'{"ok":1,"ts":"1"}',
            "ok without anything": b'{"ok":true}',
            "ok with nulls": b'{"ok":true,"ts":null,"channel":null,"team_id":null,"access_token":null}',
            "numbers for text": b'{"ok":true,"ts":1,"channel":{"id":2},"team_id":3,"access_token":4}',
            "surrogates for ids": b'{"ok":true,"ts":"%b","channel":{"id":"%b"},"team":"%b","team_id":"%b","user_id":"U","access_token":"%b"}'
            % ((SURROGATE,) * 5),
            "line feeds for ids": b'{"ok":true,"ts":"1\\n","channel":{"id":"D\\n"},"team_id":"T\\r\\nx","user_id":"U","access_token":"x\\r\\ny: z"}',
            "NUL for ids": b'{"ok":true,"ts":"\\u0000","channel":{"id":"\\u0000"},"team_id":"\\u0000","access_token":"\\u0000"}',
            "lists for objects": b'{"ok":true,"channel":[],"channels":{},"members":"x","team":[]}',
            "an unusable cursor": b'{"ok":true,"response_metadata":{"next_cursor":"%b"}}' % SURROGATE,
            "a number as cursor": b'{"ok":true,"response_metadata":{"next_cursor":1e400}}',
            "a huge number": b'{"ok":true,"ts":' + b"9" * 100_000 + b"}",
            "not UTF-8": b'{"ok":true,"ts":"\xff\xfe"}',
            "UTF-16": '{"ok":true,"ts":"1"}'.encode("utf-16"),
            "no body": b"",
            "no JSON": b"not json",
            "half of it": b'{"ok":true,"ts"',
            "no object": b"[1]",
            "text": b'"ok"',
            "too long": b'{"ok":true,"ts":"1"' + b" " * MAX_BYTES + b"}",
        }.items()
    },
    "charset rot13": (200, {"content-type": "application/json; charset=rot13"}, b'{"ok":false,"error":"a b"}'),
    "charset utf-7": (200, {"content-type": "application/json; charset=utf-7"}, b"{+AAo-}"),
    "unknown charset": (200, {"content-type": 'application/json; charset="\x7f"'}, b"{}"),
    "HTML": (200, {"content-type": "text/html"}, b"<html>Sign in to the hotel</html>"),
    "plain text": (200, {"content-type": "text/plain"}, b'{"ok":true,"ts":"1"}'),
    "a file": (200, {"content-type": "application/gzip"}, b"\x1f\x8b"),
    "no type": (200, {}, b'{"ok":true,"ts":"1"}'),
    "not compressed": (200, {**JSON, "content-encoding": "gzip"}, b'{"ok":true,"ts":"1"}'),
    "compressed and cut": (200, {**JSON, "content-encoding": "gzip"}, gzip.compress(b'{"ok":true}')[:-9]),
    "compressed twice": (200, {**JSON, "content-encoding": "gzip, gzip"}, gzip.compress(gzip.compress(b"{}"))),
    "an unknown compression": (200, {**JSON, "content-encoding": "rot13"}, b"{}"),
    "a bomb": (200, {**JSON, "content-encoding": "gzip"}, gzip.compress(b" " * (4 * MAX_BYTES))),
    "a redirect": (302, {**JSON, "location": "/api/auth.test"}, b'{"ok":true,"ts":"1"}'),
    "created": (201, JSON, b'{"ok":true,"ts":"1"}'),
    "an error that says ok": (500, JSON, b'{"ok":true,"ts":"1"}'),
    "an error nested too deeply": (503, JSON, b"[" * 50_000),
    "an odd wait": (503, {**JSON, "retry-after": "-1"}, b"{}"),
    "an endless wait": (429, {**JSON, "retry-after": "9" * 5000}, b"{}"),
    "a wait that is no number": (429, {**JSON, "retry-after": "٣"}, b"{}"),
}
"""Status, headers and body of answers that no provider should give."""

SAYS_OK: Final = frozenset(
    {
        "ok without anything",
        "ok with nulls",
        "numbers for text",
        "surrogates for ids",
        "line feeds for ids",
        "NUL for ids",
        "lists for objects",
        "an unusable cursor",
        "a number as cursor",
        "not UTF-8",
        "plain text",
        "no type",
        "created",
    }
)
"""Those of them that say that a message was posted (§4.1)."""


OK_HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"

UNREAD: Final[Mapping[str, bytes]] = {
    "the text ok": OK_HEAD + b"content-length: 2\r\n\r\nok",
    "another word for ok": OK_HEAD + b'content-length: 16\r\n\r\n{"success":true}',
    "ok as text": OK_HEAD + b'content-length: 13\r\n\r\n{"ok":"true"}',
    "ok as a number": OK_HEAD + b'content-length: 8\r\n\r\n{"ok":1}',
    "a revoked token, but not in the provider's way": OK_HEAD
    + b'content-length: 24\r\n\r\n{"error":"invalid_auth"}',
    "a list": OK_HEAD + b'content-length: 13\r\n\r\n[{"ok":true}]',
    "null": OK_HEAD + b"content-length: 4\r\n\r\nnull",
    "a page for signing in": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>",
    "nothing": OK_HEAD + b"content-length: 0\r\n\r\n",
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "accepted": b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
    "broken off": OK_HEAD + b'content-length: 100\r\n\r\n{"ok":true,"ts":"1"}',
    "a chunk broken off": OK_HEAD + b'transfer-encoding: chunked\r\n\r\n5\r\n{"o',
    "no last chunk": OK_HEAD + b'transfer-encoding: chunked\r\n\r\nb\r\n{"ok":true}\r\n',
    "no size of a chunk": OK_HEAD + b'transfer-encoding: chunked\r\n\r\nzz\r\n{"ok":true}',
    "both lengths": OK_HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    "two lengths": OK_HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\nok",
    "a name with a space": OK_HEAD + b"x y: z\r\ncontent-length: 2\r\n\r\nok",
    "headers without an end": OK_HEAD + b"x: " + b"y" * 70_000 + b"\r\n\r\nok",
    "too much": OK_HEAD + b"content-length: %d\r\n\r\n" % (MAX_BYTES + 1) + b" " * (MAX_BYTES + 1),
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
}
"""Answers, raw, that say that a call succeeded, or nothing that can be understood, and not in the provider's way."""


def is_proper(value: Any) -> bool:
    """Tell whether what a provider method gave can be stored, logged and sent to a browser."""
    encoded = msgspec.json.encode(value).decode()
    return "\\u00" not in encoded and all(character not in encoded for character in "\r\n\0\u2028")


async def outcome_of(call: Awaitable[Any]) -> str:
    """Tell whether a call gave a proper value, or was refused in words that can be logged."""
    try:
        value = await call
    except ChatRefused as refusal:
        words = (str(refusal), refusal.needed, refusal.detail)
        return "refused" if refusal.code.isidentifier() and is_proper(words) else f"badly refused: {words}"
    return "given" if is_proper(value) else f"improper: {value}"


@asynccontextmanager
async def answering(
    serve: Callable[[asyncio.StreamWriter], Awaitable[None]] | Sequence[bytes],
) -> AsyncIterator[SlackProvider]:
    """Give a provider object whose requests are read whole and answered by ``serve``, or with one after the other."""
    waiting = [] if callable(serve) else list(serve)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            await reader.readexactly(int(length[0].partition(b":")[2]) if length else 0)
            if callable(serve):
                await serve(writer)
            else:
                writer.write(waiting.pop(0))
            await writer.drain()

    async with listening(handle) as port:
        provider = SlackProvider(f"http://127.0.0.1:{port}/api/", "id", "secret")
        try:
            yield provider
        finally:
            await provider.aclose()


def raw(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, f"content-length: {len(body)}"])
    return head.encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


class TestReading:
    @pytest.mark.parametrize(
        ("method", "scope"),
        [
            ("chat.postMessage", "chat:write"),
            ("conversations.open", "im:write"),
            ("conversations.list", "channels:read"),
            ("users.conversations", "groups:read"),
            ("users.list", "users:read"),
        ],
    )
    async def test_a_missing_scope_that_is_not_named_is_the_calls_own(self, method: str, scope: str) -> None:
        """The connection's card says what is missing (§2.3)."""
        answer = raw(200, {"content-type": "application/json"}, b'{"ok": false, "error": "missing_scope"}')
        async with answering([answer]) as provider:
            with pytest.raises(ChatRefused) as refused:
                await CALLS[method](provider)
        assert refused.value.needed == (scope,)

    @pytest.mark.parametrize("method", CALLS)
    async def test_a_hostile_answer_is_refused_or_cleaned(self, method: str) -> None:
        """Every method returns a valid value or raises `ChatRefused`."""
        outcomes = {}
        for name, (status, headers, body) in HOSTILE.items():
            async with answering([raw(status, headers, body)]) as provider:
                outcomes[name] = await outcome_of(CALLS[method](provider))
        # Lists that are empty, and what a method does not look at.
        unread = {"auth.revoke", "conversations.list", "users.conversations", "users.list", "auth.test"}
        proper = {"refused", "given"} if method in unread else {"refused"}
        if method == "chat.postMessage":
            assert {name for name, outcome in outcomes.items() if outcome == "given"} == SAYS_OK
            outcomes = {name: outcome for name, outcome in outcomes.items() if name not in SAYS_OK}
        assert {name: outcome for name, outcome in outcomes.items() if outcome not in proper} == {}

    @pytest.mark.parametrize("method", CALLS)
    async def test_a_valid_answer_is_read_in_every_encoding(self, method: str) -> None:
        """Compressed, with a charset, with another JSON type, and with unknown fields."""
        body = json.dumps({**GOOD[method], "more": {"deep": [[[{}]]], "ä": 1e9}}).encode()
        dresses: list[tuple[dict[str, str], bytes]] = [
            (JSON, body),
            ({"content-type": "application/json"}, body + b"\r\n"),
            ({"content-type": 'Application/JSON; charset="latin-1"'}, body),
            ({"content-type": "application/vnd.chat+json"}, body),
            ({**JSON, "content-encoding": "gzip"}, gzip.compress(body)),
            ({"content-type": "text/html"}, body),
            ({}, body),
            (JSON, b"\xef\xbb\xbf" + body),
            (JSON, body + b" " * (MAX_BYTES - len(body))),
        ]
        waiting = [raw(200, headers, content) for headers, content in dresses]
        async with answering(waiting) as provider:
            values = [await CALLS[method](provider) for _ in dresses]
        assert all(value == values[0] for value in values)

    @pytest.mark.parametrize("method", CALLS)
    async def test_a_success_that_cannot_be_read_has_words_of_its_own(self, method: str) -> None:
        """A message may have been posted; other answers were not Slack's. Neither is asked for again (§7.1)."""
        code = "maybe_posted" if method == "chat.postMessage" else "unreadable_answer"
        codes = {}
        for name, answer in UNREAD.items():

            async def serve(writer: asyncio.StreamWriter, answer: bytes = answer) -> None:
                writer.write(answer)
                await writer.drain()
                writer.close()

            async with answering(serve) as provider:
                with pytest.raises(ChatRefused) as refused:
                    await CALLS[method](provider)
            codes[name] = (refused.value.code, refused.value.transient)
        assert codes == dict.fromkeys(UNREAD, (code, False))

    @pytest.mark.parametrize("status", [199, 300, 400, 500, 503])
    def test_another_status_is_none_of_the_providers_answers(self, status: int) -> None:
        """With anything that is no refusal in the provider's form, the call may succeed later."""
        for body in (b'{"ok":true,"ts":"1"}', b"", b"<html>", b'{"ok":false,"error":"invalid_auth"}'):
            with pytest.raises(ChatRefused) as refused:
                read_answer(status, JSON, body)
            assert (refused.value.code, refused.value.transient) == ("unreachable", True)

    async def test_an_error_whose_body_breaks_off_may_be_repeated(self) -> None:
        """Its status says that the message was not posted."""

        async def serve(writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 503 Down\r\ncontent-length: 100\r\n\r\n<html>")
            await writer.drain()
            writer.close()

        async with answering(serve) as provider:
            with pytest.raises(ChatRefused) as refused:
                await provider.post_message("xoxb-1", "C1", "hi")
        assert (refused.value.code, refused.value.transient) == ("unreachable", True)

    async def test_an_answer_that_is_silent_after_its_head_is_not_repeated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The call ends at its time, and the message may have been posted."""
        codes: list[str] = []
        for seconds in (0.2, 20.0):  # a busy machine may not have read the head within the first
            monkeypatch.setattr("flowactions_plugin.chat.provider.CALL_SECONDS", seconds)
            async with answering([b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{"]) as provider:
                with pytest.raises(ChatRefused) as refused:
                    await provider.post_message("xoxb-1", "C1", "hi")
            codes.append(refused.value.code)
            if codes[-1] != "unreachable":
                break
        assert codes[-1] == "maybe_posted"

    async def test_display_names_are_cleaned_and_not_refused(self) -> None:
        """One unusual name does not remove others from a picker, and fits on one line of limited length."""
        names = ["\ud800Ada\x00\n\u2028", "x" * 100_000, "", 7, None, {"a": 1}, "Zoë 👩‍💻"]
        members = [{"id": f"U{at}", "name": "n", "real_name": name} for at, name in enumerate(names)]
        ids: tuple[Any, ...] = ("\ud800", "", "U 1", "U\n", 7, None, [], "U" * 256)
        odd = [{"id": each} for each in ids]
        body = json.dumps({"ok": True, "members": [*members, *odd, 7, None, []]}).encode()
        async with answering([raw(200, JSON, body)]) as provider:
            page = await provider.members("xoxb-1", None, 10)
        labels = [choice.label for choice in page.choices]
        assert labels == ["\ufffdAda", "x" * 200, "n", "n", "n", "n", "Zoë 👩‍💻"]
        assert is_proper(page)


class TestBounds:
    """An answer costs bounded memory and time, however long its sender goes on."""

    @pytest.fixture
    def shorter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("flowactions_plugin.chat.provider.CALL_SECONDS", 1.0)

    async def test_at_most_a_mebibyte_of_a_body_is_read(self) -> None:
        """Of 300 MiB, little more leaves the provider, and it is not kept in memory."""
        sent = 0

        async def serve(writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 314572800\r\n\r\n"
            )
            while sent < 300 << 20:
                writer.write(b" " * 65536)
                await writer.drain()
                sent += 65536

        async with answering(serve) as provider:
            tracemalloc.start()
            with pytest.raises(AnswerTooLarge):
                await provider.members("xoxb-1", None, 999)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert sent < 32 << 20  # what the buffers of both sides' sockets take
        assert peak < 16 << 20

    async def test_a_decompression_bomb_is_not_decompressed(self) -> None:
        """A body that decompresses to 32 MiB costs as much as one that is too large."""
        bomb = gzip.compress(b" " * (32 << 20))
        assert len(bomb) < MAX_BYTES
        tracemalloc.start()
        with pytest.raises(AnswerTooLarge):
            read_answer(200, {**JSON, "content-encoding": "gzip"}, bomb)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4 * MAX_BYTES

    @sampled(
        "flood",
        [
            pytest.param((b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100), id="interim answers"),
            pytest.param((b"HTTP/1.1 200 OK\r\n", b"x: y\r\n" * 100), id="headers"),
            pytest.param((b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000), id="a header"),
            pytest.param((b"HTTP/1.1 200 ", b"y" * 1000), id="a status line"),
            pytest.param(
                (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 100), id="chunks"
            ),
            pytest.param((b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n", b""), id="silence in the body"),
            pytest.param((b"", b""), id="silence"),
            pytest.param((b"", b"\x16\x03\x01" * 100), id="no HTTP"),
        ],
        size=4,
    )
    @pytest.mark.usefixtures("shorter")
    async def test_an_endless_answer_ends_with_the_call(self, flood: tuple[bytes, bytes]) -> None:
        """The time of the call and its memory are limited."""
        first, more = flood

        async def serve(writer: asyncio.StreamWriter) -> None:
            writer.write(first)
            while True:
                writer.write(more)
                await writer.drain()
                await asyncio.sleep(0 if more else 0.1)

        async with answering(serve) as provider:
            tracemalloc.start()
            with pytest.raises(ChatRefused):
                await provider.post_message("xoxb-1", "C1", "hi")
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak < 64 << 20


class TestEverywhere:
    """Hostile answers at the node, in a deferred walk, and at every route."""

    FAULTS: Final = {
        name: Fault(status, body, tuple(headers.items()))
        for name, (status, headers, body) in HOSTILE.items()
        # The fake provider gives a type of its own to what has none, and headers that are ASCII.
        if headers and all(" " <= character <= "~" for character in "".join(headers.values()))
    }

    @pytest.fixture
    async def run(self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatHost]:
        monkeypatch.setattr("flowactions_plugin.chat.calls.RETRY_DELAYS", (0.01, 0.02, 0.03))
        async with chat_host(sqlite_url) as running:
            assert await running.connect() == {"chat": "connected"}
            yield running

    @pytest.mark.parametrize("retry", [True, False])
    async def test_what_says_ok_is_sent_with_or_without_a_timestamp(self, run: ChatHost, retry: bool) -> None:
        """Once, at the node and as a test message, whose timestamp is empty text then (§4.1)."""
        await run.browser.put("/integrations/chat/connection/default-channel", json={"channelId": "C0GENERAL"})
        said = {name: self.FAULTS[name] for name in SAYS_OK & set(self.FAULTS)}
        said["a byte order mark"] = Fault(200, b'\xef\xbb\xbf{"ok":true,"ts":"1.2"}', tuple(JSON.items()))
        for name, fault in said.items():
            run.provider.calls.clear()
            run.provider.faults["chat.postMessage"].extend([fault] * 2)
            assert (await run.message(chatRetryOnFailure=retry)).status == "sent", name
            sent = await run.browser.post("/integrations/chat/send-message", json={"text": "x"})
            timestamp = {"plain text": "1", "created": "1", "a byte order mark": "1.2"}.get(name, "")
            assert sent.json() == {"data": {"ok": True, "ts": timestamp}}, name
            assert run.provider.calls == ["chat.postMessage"] * 2, name
        assert (await run.card())["lastError"] is None

    async def test_an_unread_success_says_what_to_look_at(
        self, run: ChatHost, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The author learns that it may have been posted, the operator what is not Slack's; installs likewise."""
        login = Fault(200, b"<html>Sign in</html>", (("content-type", "text/html"),))
        run.provider.faults["chat.postMessage"].append(login)
        result = await run.message(chatRetryOnFailure=True)
        assert result.message is not None
        assert result.message.startswith("The message may have been posted")
        for method in ("auth.test", "oauth.v2.access"):
            run.provider.faults[method].append(login)
            assert await run.connect() == {"chat": "error", "reason": "unreadable_answer"}
        told = [message for message in caplog.messages if "CHAT_API_URL" in message]
        assert len(told) == 3

    @pytest.mark.ci
    async def test_no_route_answers_500(
        self, run: ChatHost, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Test send, pickers, install and disconnect answer with their usual problems."""
        monkeypatch.setattr("flowactions_plugin.chat.directory.FRESH_SECONDS", -1.0)
        channel = {"channelId": "C0GENERAL"}
        for name, fault in self.FAULTS.items():
            faults = run.provider.faults
            faults["chat.postMessage"].append(fault)
            await run.browser.put("/integrations/chat/connection/default-channel", json=channel)
            sent = await run.browser.post("/integrations/chat/send-message", json={"text": "x"})
            assert (sent.status_code, sent.json()["data"]["ok"]) == (200, name in SAYS_OK), name
            lists = {"joined:": "users.conversations", "others:": "conversations.list", "": "users.list"}
            for cursor, method in lists.items():
                faults[method].extend([fault] * 3)
                path = f"{'channels' if cursor else 'members'}?search={len(run.provider.calls)}&cursor={cursor}"
                found = await run.browser.get(f"/integrations/chat/{path}")
                assert found.status_code in {200, 502}, name
                faults[method].clear()
            faults["auth.revoke"].append(fault)
            assert (await run.browser.delete("/integrations/chat/connection")).status_code == 204, name
            assert await run.card() is None
            for method in ("oauth.v2.access", "auth.test"):
                faults[method].append(fault)
                assert (await run.connect())["chat"] == "error", name
                faults[method].clear()
            assert await run.connect() == {"chat": "connected"}, name
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert all(message.isprintable() for message in caplog.messages)


def test_a_407_is_the_egress_proxys_whatever_it_says() -> None:
    """The provider has not spoken when a proxy asks for credentials: the call may succeed later (§7.1)."""
    with pytest.raises(ChatRefused) as refused:
        read_answer(407, JSON, b'{"ok":false,"error":"is_archived"}')
    assert refused.value.code == "unreachable"
