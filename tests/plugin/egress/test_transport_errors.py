"""Why there is no answer, in words that authors and tenants can read."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID

from flowactions_plugin.egress.dialer import Dialer
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.sender import UNEXPECTED
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.egress.transport_errors import broke, cannot_connect, no_address
from tests.authority import inner_authority
from tests.loopback import listening
from tests.recorder import OK
from tests.sending import attempt, own_transport

WHERE = "hooks.example.com:443"
INNER = re.compile(r"Errno|Error|Connect call|SSL:|_ssl|\[|\(|0x|127\.0\.0\.9")

CERTIFICATES = {
    "certificate": (0, 99),
    "it is not valid yet": (9,),
    "it has expired": (10,),
    "it vouches for itself": (18,),
    "an authority that is not trusted here": (19, 20, 21),
    "it is not for a server": (26,),
    "it is for another name": (62,),
    "it is for another address": (64,),
    "is too short": (66, 67),
    "a weak algorithm": (68,),
}
"""What is said for numbers of OpenSSL's (X509_V_ERR_…)."""


def _certificate(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(
        1, "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:1016)"
    )
    error.verify_code = code
    return error


def _tls(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] {reason.lower()} (_ssl.c:1016)")
    error.reason = reason
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
        (_tls("TLSV1_ALERT_INTERNAL_ERROR"), "it reported an internal error of its TLS"),
        (_tls("DH_KEY_TOO_SMALL"), "its Diffie-Hellman key is too short"),
        (_tls("TLSV1_ALERT_NO_APPLICATION_PROTOCOL"), "it does not offer HTTP/1.1"),
        (_tls("UNSAFE_LEGACY_RENEGOTIATION_DISABLED"), "its TLS has no secure renegotiation"),
        (_tls("TLSV1_ALERT_DECODE_ERROR"), "TLS failed: tlsv1 alert decode error"),
        # Python has no name for some errors of OpenSSL, and shows its text.
        (
            ssl.SSLError(1, "[SSL] tlsv1 alert no application protocol (_ssl.c:1006)"),
            "it does not offer HTTP/1.1",
        ),
        (
            ssl.SSLError(1, "[SSL] tlsv1 alert user cancelled (_ssl.c:1006)"),
            "TLS failed: tlsv1 alert user cancelled",
        ),
        (ssl.SSLError(1, "[SSL] unknown error (_ssl.c:1006)"), "TLS failed"),
        (ssl.SSLError("no text of OpenSSL"), "TLS failed"),
        *((_certificate(code), said) for said, codes in CERTIFICATES.items() for code in codes),
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


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (socket.EAI_NONAME, "the name"),
        (socket.EAI_AGAIN, "the name server did not answer"),
        (socket.EAI_FAIL, "the name server failed"),
        (socket.EAI_SYSTEM, "the lookup failed"),
        (-99, "the "),
    ],
)
def test_a_name_without_an_address_is_told_in_words(code: int, said: str) -> None:
    """Whether the name is missing, or whoever knows it does not answer."""
    message = no_address("hooks.example.com", socket.gaierror(code, "Name or service not known"))
    assert message.startswith("hooks.example.com has no address now: the ")
    assert said in message
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
        outcome = await attempt(transport, f"{scheme}://{where}/")
    assert outcome.error == said.format(where)


def old(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with warnings.catch_warnings(action="ignore"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1


def other_ciphers(context: ssl.SSLContext) -> None:
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")


def asks(context: ssl.SSLContext) -> None:
    context.verify_mode = ssl.CERT_REQUIRED


def asks_early(context: ssl.SSLContext) -> None:
    asks(context)
    context.maximum_version = ssl.TLSVersion.TLSv1_2


def unknown(context: ssl.SSLContext) -> None:
    context.sni_callback = lambda *_: ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


def http2_only(context: ssl.SSLContext) -> None:
    # As OpenSSL's server answers. Python's own goes on without a protocol, so the alert is sent where another may be chosen.
    context.sni_callback = lambda *_: 120  # no_application_protocol


TLS_OF: Mapping[str, tuple[dict[str, Any], Callable[[ssl.SSLContext], None] | None, str | None]] = {
    # What the receiver has: its certificate, its settings, what is said.
    "all in order": ({}, None, None),
    "an authority that says nothing of its key": ({"strict": False}, None, None),
    "TLS 1.1": ({}, old, "it has no version of TLS from 1.2 on"),
    "no common cipher": ({}, other_ciphers, "it accepts none of our ciphers, or asks for a client certificate"),
    "a question for our certificate": ({}, asks, "it asks for a client certificate"),
    "the same before TLS 1.3": (
        {},
        asks_early,
        "it accepts none of our ciphers, or asks for a client certificate",
    ),
    "other names": ({}, unknown, "it does not know this name"),
    "HTTP/2 only": ({}, http2_only, "it does not offer HTTP/1.1"),
    "a short key": ({"bits": 1024}, None, "its key is too short"),
    "a client's certificate": ({"purpose": ExtendedKeyUsageOID.CLIENT_AUTH}, None, "it is not for a server"),
    "a certificate of another authority": (
        {"trusted": False},
        None,
        "it comes from an authority that is not trusted here, or an intermediate certificate is missing",
    ),
    "an expired certificate": ({"days": -1}, None, "it has expired"),
    "another name": ({"host": "other.example"}, None, "it is for another name"),
}


@pytest.mark.parametrize("named", TLS_OF)
async def test_what_tls_refuses_is_told_in_words(tmp_path: Path, named: str) -> None:
    """By a real handshake; the same on all versions of Python."""
    about, change, said = TLS_OF[named]
    trusted, about = about.get("trusted", True), {key: each for key, each in about.items() if key != "trusted"}
    authority, context = inner_authority(tmp_path, **{"host": "hooks.example.com", **about})
    if not trusted:
        authority, _ = inner_authority(tmp_path)
    if change is not None:
        change(context)
    found = await error_of("hooks.example.com", authority, context)
    assert (found or "").rpartition(": ")[2] == (said or "")


async def test_a_wildcard_covers_no_name_with_an_underscore(tmp_path: Path) -> None:
    """OpenSSL refuses it, and the reason says so."""
    authority, context = inner_authority(tmp_path, host="*.example.com")
    assert await error_of("hooks.example.com", authority, context) is None
    found = await error_of("my_hooks.example.com", authority, context)
    assert (found or "").endswith("it is for another name; a wildcard covers no name with an underscore")
    authority, context = inner_authority(tmp_path, host="my_hooks.example.com")
    assert await error_of("my_hooks.example.com", authority, context) is None


async def test_a_certificate_of_the_file_is_trusted_although_it_is_no_root(tmp_path: Path) -> None:
    """As the receiver's own; the flags are the same on all versions of Python."""
    _, context = inner_authority(tmp_path, host="hooks.example.com")
    own = (
        "-----BEGIN CERTIFICATE-----"
        + (tmp_path / "server.pem").read_text().partition("-----BEGIN CERTIFICATE-----")[2]
    )
    assert await error_of("hooks.example.com", own, context) is None
    flags = Dialer(None).tls.verify_flags
    assert flags & ssl.VERIFY_X509_PARTIAL_CHAIN
    assert not flags & ssl.VERIFY_X509_STRICT


@contextmanager
def serving_tls(context: ssl.SSLContext) -> Iterator[int]:
    """Answer one connection in a thread: of asyncio's servers, the alert of a failed handshake does not arrive."""

    def serve() -> None:
        connection, _ = server.accept()
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as secured:
            secured.settimeout(300)
            with suppress(OSError):
                secured.do_handshake()
                while not secured.recv(65536).endswith(b"{}"):
                    pass
                secured.sendall(OK)
            with suppress(OSError):
                secured.shutdown(socket.SHUT_WR)
                while secured.recv(65536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        thread.join(300)


async def error_of(host: str, authority: str, context: ssl.SSLContext) -> str | None:
    """Return why an attempt at a receiver on loopback has failed; ``None``: it has not."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    transport = OutboundTransport(EgressGuard(development=True, resolve=resolve), 1, authorities=authority)
    try:
        with serving_tls(context) as port:
            outcome = await attempt(transport, f"https://{host}:{port}/")
            await transport.aclose()
    finally:
        await transport.aclose()
    return outcome.error


async def test_what_nobody_has_foreseen_is_in_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    """An error of any other kind is a failed attempt, whose reason leads to the log."""

    class Breaks:
        async def send(self, request: object) -> None:
            raise KeyError("inner words")

        async def aclose(self) -> None: ...

    outcome = await attempt(Breaks())
    assert outcome.error == UNEXPECTED
    assert "inner words" in caplog.text
