"""Masks what not everybody may read: credentials in headers and queries, and the inner parts of a reason."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import unquote

from flowactions_plugin.origins import CHAT, kind_of

MASK: Final = "…"

CREDENTIAL_PARTS: Final = (
    "auth",
    "bearer",
    "cookie",
    "credential",
    "hmac",
    "jwt",
    "key",
    "passcode",
    "passphrase",
    "passw",
    "secret",
    "session",
    "signature",
    "token",
)
"""A name that contains one of these is that of a credential."""

CREDENTIAL_WORDS: Final = frozenset({"otp", "pass", "pat", "pin", "pwd", "sas", "sid", "sig", "sign"})
"""These are compared with whole words, because they are parts of other words."""

_SCHEME: Final = re.compile(
    r"\s*(?:basic|bearer|digest|negotiate|hmac|token|apikey|aws4-hmac-sha256)\s+\S", re.IGNORECASE
)
"""Credentials in the form of the header ``Authorization`` (RFC 9110 §11.6.2), in any header."""

_INNER: Final = (
    (re.compile(r"\(?\[(?:Errno|SSL)\b.*|\(?Connect call failed.*"), "the network failed"),
    (re.compile(r"\braised [A-Z]\w*.*"), "failed"),
    (re.compile(r"\bunexpectedly: [A-Z]\w*.*"), "unexpectedly"),
    (re.compile(r" [^.]*\bFLOWACTIONS_[A-Z_]+.*"), ""),
)
"""What a stored reason may have for operators → what tenants read in its place."""

_NUMBERS: Final = re.compile(r"(?<![\w.:])[0-9A-Fa-f:.]{2,}(?!\w)")
"""What may be an address, with a port perhaps."""

_WORDS: Final = re.compile(r"[a-z0-9]+")
_PARAMETER: Final = re.compile(r"(?<=[?&;])([^=&;#]*)=([^&;#]+)")
_SECRET_PATH: Final = re.compile(
    r"""(https?://(?:
        hooks\.slack(?:-gov)?\.com(?::\d+)?/\w+/
      | hooks\.zapier\.com(?::\d+)?/hooks/\w+/
      | (?:[\w-]+\.)?discord(?:app)?\.com(?::\d+)?/api/(?:v\d+/)?webhooks/
      | api\.telegram\.org(?::\d+)?/(?:file/)?bot
      | maker\.ifttt\.com(?::\d+)?/(?:[\w-]+/)*key/
    )).+""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
"""URLs of services whose rest of the path is a credential, and need not look like one."""

_CHANGE: Final = re.compile(r"[0-9](?=[-_]?[A-Za-z])|[A-Za-z](?=[-_]?[0-9])|[a-z](?=[A-Z])")
"""Where letters and digits, or small letters and capitals, follow each other: often in random text, seldom in words."""


def is_credential_name(name: str) -> bool:
    """Return whether a header or query parameter of this name holds a credential.

    It does when its name contains one of `CREDENTIAL_PARTS` or has one of `CREDENTIAL_WORDS` as a whole word. Case does
    not matter, and ``api-key``, ``api_key`` and ``apikey`` are equal.
    """
    lower = name.strip().lower()
    if lower in {"idempotency-key", "x-idempotency-key"}:  # shown, because they identify repeated requests
        return False
    return any(part in lower for part in CREDENTIAL_PARTS) or not CREDENTIAL_WORDS.isdisjoint(
        _WORDS.findall(lower)
    )


def masked_header(name: str, value: str) -> str:
    """Return a header's value, or `MASK` for a credential."""
    return MASK if value and (is_credential_name(name) or _SCHEME.match(value)) else value


def masked_url(url: str) -> str:
    """Return a URL with `MASK` in place of what may be a credential: in its path, and as values of its query. An id of chat is none."""
    if kind_of(url) == CHAT:
        return url
    address, separator, query = url.partition("?")
    known = _SECRET_PATH.match(address)
    if known is not None:
        address = f"{known[1]}{MASK}"
    else:
        scheme, slashes, rest = address.partition("://")
        host, *parts = rest.split("/")
        address = "/".join(
            [f"{scheme}{slashes}{host}", *(MASK if _is_random(part) else part for part in parts)]
        )
    return address + _PARAMETER.sub(
        lambda found: (
            f"{found[1]}={MASK}" if found[1].lower() == "code" or is_credential_name(found[1]) else found[0]
        ),
        separator + query,
    )


def _is_random(part: str) -> bool:
    return len(part) >= 16 and len(_CHANGE.findall(unquote(part))) >= 4


def reason_for_tenants(text: str, authored: str) -> str:
    """Return why a delivery failed or waits, without errors of Python and the operating system, settings and addresses.

    Args:
        text: the reason as it is stored.
        authored: what the author wrote: addresses in it stay. What a name resolves to here is not shown.
    """

    def shown(found: re.Match[str]) -> str:
        address = _address(found[0])
        return found[0] if address is None or address in authored else "(an address)"

    for inner, said in _INNER:
        text = inner.sub(said, text)
    return _NUMBERS.sub(shown, text)


def _address(text: str) -> str | None:
    text = text.rstrip(".")
    if "." in text and text.count(":") == 1:
        text = text.partition(":")[0]
    for candidate in (text, text.rstrip(":")):
        try:
            ipaddress.ip_address(candidate)
        except ValueError:
            continue
        return candidate
    return None
