"""The commands that a delivery's page offers for copying, run in a real shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowactions_conformance.receiver import Receiver
from flowactions_conformance.serving import serve
from flowactions_hookspecs import Header, HostOrigin, Origin
from flowactions_plugin.egress.signature import sign
from flowactions_plugin.insights.curl import MOST_CHARACTERS, commands, quoted
from tests.owning import own_webhook
from tests.plugin.nodes import running as hosting
from tests.recorder import status
from tests.support import SmallHost, development
from tests.waiting import until

NASTY = [
    "plain",
    "it's",
    "$(touch {marker})",
    "`touch {marker}`",
    "'; touch {marker}; '",
    "a\nb\r\nc\ttab",
    "\x1b[201~touch {marker}\n",
    "\x1b]0;title\x07'; touch {marker}; '",
    "back\\slash \\' \\n",
    "!history $HOME ~ * ? [a] {{a,b}}",
    "\u202egnp.exe \u200b \ufeff",
    "@/etc/passwd",
    "-o {marker}",
    "",
    "ünï ☃ 😀",
]

needs_shell = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "curl", "openssl"))), reason="there is no bash, curl or openssl"
)


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", script],  # noqa: S607  the one on the path
        cwd=folder,
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **environment},
        capture_output=True,
        timeout=300,
        check=False,
    )


@needs_shell
def test_a_text_is_one_word_of_a_shell(tmp_path: Path) -> None:
    """Whatever it holds, nothing of it is run, and what is copied has no character that a terminal acts on."""
    texts = [text.replace("{marker}", str(tmp_path / "marker")) for text in NASTY]
    words = [quoted(text) for text in texts]
    assert all(map(str.isprintable, words))
    done = run(f"printf '%s\\0' {' '.join(words)}", tmp_path)
    assert (done.stdout.decode().split("\0")[:-1], done.stderr) == (texts, b"")
    assert not (tmp_path / "marker").exists()


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
def test_what_is_quoted_holds_nothing_unseen(text: str) -> None:
    """For any text."""
    assert quoted(text).isprintable()


@needs_shell
@pytest.mark.parametrize(
    ("method", "signed"),
    [("POST", True), ("NOTIFY", False), ("HEAD", False)],
)
async def test_the_copied_command_sends_what_was_sent(method: str, signed: bool, tmp_path: Path) -> None:
    """The same method, path, header and body, with a signature that a receiver accepts; unsigned, one printable line."""
    receiver = Receiver("topsecret")
    bodies = [*(text.replace("{marker}", str(tmp_path / "marker")) for text in NASTY), '{"a": [1, 2]}\n', None]
    headers = [Header(key="x-name", value="it's $HOME"), Header(key="x-empty", value="")]
    async with serve(receiver.app) as url:
        for body in bodies if method != "HEAD" else [None]:
            found = commands(method, f"{url}/hooks/[a]?b={{c}}&d='e'", headers, body, signed=signed)
            assert found is not None
            assert signed or (found.send.isprintable(), found.verify) == (True, "")
            done = await asyncio.to_thread(run, found.send, tmp_path, SECRET="topsecret")
            assert done.returncode == 0, done.stderr
            arrival = receiver.arrivals.pop()
            assert (arrival.method, arrival.body) == (method, body or "")
            assert arrival.path == "/hooks/[a]?b={c}&d='e'"
            received = {name.lower(): value for name, value in arrival.headers}
            assert (received["x-name"], received["x-empty"]) == ("it's $HOME", "")
            assert (arrival.signature == "verified") == signed
    assert not (tmp_path / "marker").exists()


@needs_shell
def test_the_verifying_line_prints_the_signature(tmp_path: Path) -> None:
    """That of §5.3.3, for the timestamp that a receiver got; without a secret it says so."""
    for body in (*NASTY[4:9], "", None):
        found = commands("POST", "https://example.com/", [], body)
        assert found is not None
        done = run(found.verify, tmp_path, SECRET="s3cret", TIMESTAMP="1700000000")
        assert done.stdout.decode().strip() == sign("s3cret", 1_700_000_000, (body or "").encode())
        without = run(found.verify, tmp_path, TIMESTAMP="1")
        assert (without.stdout, b"SECRET" in without.stderr) == (b"", True)


@needs_shell
async def test_a_shell_without_the_secret_sends_nothing(tmp_path: Path) -> None:
    """An empty signature never leaves."""
    receiver = Receiver("topsecret")
    async with serve(receiver.app) as url:
        found = commands("POST", url, [], "{}")
        assert found is not None
        done = await asyncio.to_thread(run, found.send, tmp_path)
    assert (done.returncode != 0, b"SECRET: " in done.stderr, list(receiver.arrivals)) == (True, True, [])


async def test_the_page_says_which_attempts_were_signed(database_url: str) -> None:
    """Each by itself, as the last one was the commands are: of an unsigned webhook, nothing asks for a secret."""
    secrets = {"order": None, "signed": "topsecret"}

    async def signing_secret(origin: Origin) -> str | None:
        assert isinstance(origin, HostOrigin)
        return secrets[origin.id]

    host = SmallHost(development(database_url))
    host.signing_secret = signing_secret  # type: ignore[method-assign]
    async with hosting.running(host) as run:
        receiver, client = run.receiver, run.client
        receiver.answer = lambda number: status(500 if number == 1 else 200)

        async def deliver(id_: str) -> None:
            ended = len(host.finished)
            origin = HostOrigin(organization_id="acme", name="order-placed", id=id_)
            await run.actions.enqueue(own_webhook(url=receiver.url, origin=origin, entity=id_, max_attempts=1))
            await until(lambda: len(host.finished) > ended)

        async def page() -> str:
            path = f"/integrations/webhooks/deliveries/{host.finished[-1].id}"
            return (await client.get(path)).text

        await deliver("order")
        text = await page()
        assert ("signed; <strong" in text, text.count("not signed")) == (False, 1)
        assert "$SECRET" not in text
        assert ("signature:" in text, "curl --globoff" in text) == (False, True)
        delivery = host.finished[-1].id
        secrets["order"] = "topsecret"
        assert (await client.post(f"/v1/webhooks/outbox/{delivery}/retry", json={})).status_code == 200
        await until(lambda: len(host.finished) == 2)
        text = await page()
        assert (text.count("signed; <strong"), text.count("not signed")) == (1, 1)
        assert "$SECRET" in text
        shown = (await client.get(f"/v1/webhooks/outbox/{delivery}")).json()["data"]["attemptLog"]
        assert [each["note"] for each in shown] == ["not signed", None]


@pytest.mark.parametrize(
    ("method", "url", "header", "body"),
    [
        ("POST", "file:///etc/passwd", "a", ""),
        ("POST", "-o/tmp/x", "a", ""),
        ("POST", "https://a b", "a", ""),
        ("POST", "https://a\n-o", "a", ""),
        ("PO ST", "https://a", "a", ""),
        ("-X", "https://a", "@/etc/passwd", ""),
        ("POST", "https://a", "a: b\nc", ""),
        ("POST", "https://a", "a", "\ufffd"),
        ("POST", "https://a", "a", "x\0"),
        ("POST", "https://a", "a", "x" * (MOST_CHARACTERS + 1)),
    ],
)
def test_what_is_no_request_is_no_command(method: str, url: str, header: str, body: str) -> None:
    """A corrupt row has none, nor has a body that an argument cannot hold."""
    assert commands(method, url, [Header(key=header, value="v")], body) is None
