r"""Words of a shell, and commands that send a delivery again or compute its signature. Pure.

What is stored came from outside, and people paste these commands into a shell. Everything is quoted, control characters
are written as escapes (``$'\x1b'``; bash, zsh, ksh), curl expands no braces of a URL, and it reads no file for a value that
begins with ``@``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final, NamedTuple

from flowactions_hookspecs import Header
from flowactions_plugin.egress.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER

MOST_CHARACTERS: Final = 64 << 10
"""Of a body: systems limit an argument to 128 KiB."""

REPLACED: Final = "\ufffd"
"""Stands for bytes that are no text, which are lost."""

_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_URL: Final = re.compile(r"https?://[^\s\x00-\x1f\x7f]+", re.IGNORECASE)


class Commands(NamedTuple):
    """Commands for a shell such as bash or zsh.

    Attributes:
        send: sends the delivery again, signed with the secret in ``$SECRET`` if it is signed.
        verify: prints the signature for the timestamp in ``$TIMESTAMP``, as receivers get it (§5.3.3); empty if it is not signed.
    """

    send: str
    verify: str


def commands(
    method: str, url: str, headers: Sequence[Header], body: str | None, *, signed: bool = True
) -> Commands | None:
    """Return the commands of a delivery; ``None`` when it cannot be written as one.

    Args:
        method: as it is sent.
        url: as it is shown, without credentials.
        headers: the same.
        body: as text; ``None``: without.
        signed: whether it is sent with a signature; if not, one line sends it, and nothing is to be verified.
    """
    text = body or ""
    if len(text) > MOST_CHARACTERS or REPLACED in text or "\0" in text:
        return None
    if not _URL.fullmatch(url) or not all(map(_NAME.fullmatch, [method, *(each.key for each in headers)])):
        return None
    options = [
        "--head" if method == "HEAD" else f"--request {quoted(method)}",  # curl would wait for a body of HEAD
        f"--url {quoted(url)}",
        *map(_header, headers),
    ]
    has_data = body is not None and method != "HEAD"
    if not signed:
        data = [f"--data-raw {quoted(text)}"] if has_data else []
        return Commands(" ".join(["curl --globoff", *options, *data]), "")
    options += [
        f'--header "{TIMESTAMP_HEADER}: $TIMESTAMP"',
        f'--header "{SIGNATURE_HEADER}: ${{SIGNATURE:?}}"',  # a shell without the secret sends nothing
        *(['--data-raw "$BODY"'] if has_data else []),
    ]
    signature = (
        'printf \'%s.%s\' "${TIMESTAMP:?}" "$BODY" | openssl dgst -sha256 -hmac "${SECRET:?}" -r'
        " | sed 's/^/v1,/; s/ .*//'"
    )
    curl = " \\\n  ".join(["curl --globoff --http1.1 --include", *options])
    send = f"BODY={quoted(text)}\nTIMESTAMP=$(date +%s)\nSIGNATURE=$({signature})\n{curl}"
    return Commands(send, f"BODY={quoted(text)}; {signature}")


def _header(header: Header) -> str:
    # Without a value, a colon would remove the header.
    return f"--header {quoted(f'{header.key}: {header.value}' if header.value else f'{header.key};')}"


def quoted(text: str) -> str:
    r"""Return a text as one word of a shell, without a character that a terminal could act on."""
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_escaped, text)) + "'"


def _escaped(character: str) -> str:
    if character in "\\'":
        return "\\" + character
    if character == "\n":
        return "\\n"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "replace"))
