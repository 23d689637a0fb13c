"""Why there is no answer, in words that authors and tenants can read."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest

from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.egress.sender import UNEXPECTED, Sender
from flowactions_plugin.egress.transport_errors import broke, cannot_connect, no_address
from tests.loopback import listening
from tests.sending import Message, own_transport, validate

WHERE = "hooks.example.com:443"
INNER = re.compile(r"Errno|Error|Connect call|SSL:|_ssl|\[|\(|0x|127\.0\.0\.9")


def _certificate(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(
        1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1016)"
    )
    error.verify_code = code
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.9', 443)"), "refused the connection"),
        (ConnectionResetError(104, "Connection reset by peer"), "reset the connection"),
        (ConnectionAbortedError("SSL handshake is taking longer"), "closed the connection"),
        (BrokenPipeError(32, "Broken pipe"), "closed the connection"),
        (TimeoutError(110, "Connect call failed ('127.0.0.9', 443)"), "did not answer"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "no network leads to it"),
        (OSError(errno.EHOSTUNREACH, "No route to host"), "no network leads to it"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('127.0.0.9', 443)"), "network failed"),
        (ssl.SSLError(1, "[SSL: TLSV1_ALERT_INTERNAL_ERROR] tlsv1 alert (_ssl.c:1016)"), "TLS failed"),
        *((_certificate(code), "certificate") for code in (0, 9, 10, 18, 19, 20, 21, 62, 64, 99)),
        (RuntimeError("0x7f"), "network failed"),
    ],
)
def test_no_error_of_python_or_the_system_is_quoted(error: Exception, said: str) -> None:
    """The kind of the error decides the words; its own text is never among them (§8)."""
    messages = [broke(WHERE, error)] + ([cannot_connect(WHERE, error)] if isinstance(error, OSError) else [])
    assert said in messages[-1]
    for message in messages:
        assert message.count(WHERE) == 1
        assert not INNER.search(message), message


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM, -99])
def test_a_name_without_an_address_is_told_in_words(code: int) -> None:
    """Whether the name is missing, or whoever knows it does not answer."""
    message = no_address("hooks.example.com", socket.gaierror(code, "Name or service not known"))
    assert message.startswith("hooks.example.com has no address now: the ")
    assert not INNER.search(message)


async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    linger = b"\1\0\0\0\0\0\0\0"
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    await reader.read(1)
    writer.transport.abort()


async def speaks_no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example.com ESMTP ready, and much more of that\r\n")
    await reader.read(1)


@pytest.mark.parametrize(
    ("scheme", "serve", "said"),
    [
        ("http", None, "cannot connect to {}: it refused the connection"),
        ("http", resets, "the connection to {} broke: it reset the connection"),
        ("https", resets, "cannot connect to {}: it reset the connection"),
        ("https", speaks_no_tls, "cannot connect to {}: it does not speak TLS"),
    ],
)
async def test_what_a_real_receiver_does_is_told_in_words(
    scheme: str,
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None,
    said: str,
) -> None:
    """Over a real connection, with the destination's name."""
    async with listening(serve or closes) as port, own_transport() as transport:
        where = f"127.0.0.1:{port if serve else 1}"
        sender = Sender(transport, validate, lambda: 0.0, lambda: 0.0)
        outcome = await sender.send(Message(url=f"{scheme}://{where}/"), None)
    assert isinstance(outcome, Outcome)
    assert outcome.error == said.format(where)


async def test_what_nobody_has_foreseen_is_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An error of any other kind is a failed attempt, whose reason leads to the log."""

    class Breaks:
        async def send(self, request: object) -> None:
            raise KeyError("inner words")

        async def aclose(self) -> None: ...

    outcome = await Sender(Breaks(), validate, lambda: 0.0, lambda: 0.0).send(Message(), None)  # type: ignore[arg-type]
    assert isinstance(outcome, Outcome)
    assert outcome.error == UNEXPECTED
    assert "inner words" in caplog.text
