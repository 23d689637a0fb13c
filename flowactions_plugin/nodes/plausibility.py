"""What works as it is, and was hardly meant so: pure rules on the texts of a config. Each returns what to tell the author."""

from __future__ import annotations

import re
from typing import Final

from flowactions_plugin.egress.standard_webhooks import SECRET_PREFIX, signing_key
from flowactions_plugin.nodes.json_words import TYPOGRAPHIC_QUOTES

_QUOTES: Final = f"\"'`{TYPOGRAPHIC_QUOTES}"

_KNOWN_TOKEN: Final = re.compile(
    r"""
    \b(?:
      (?:xox[abeoprs]-|xapp-|[rs]k_(?:live|test)_|gh[oprsu]_|github_pat_|glpat-|whsec_)[\w.\-+/=]{8,}
      | AKIA[0-9A-Z]{16}\b | AIza[\w\-]{35}
      | eyJ[\w\-]{8,}\.eyJ[\w\-]{8,}
    )
    """,
    re.ASCII | re.VERBOSE,
)
"""Tokens of providers that mark them, and JSON Web Tokens."""

_OF_A_SCHEME: Final = re.compile(r"\s*(?:basic|bearer|token|apikey)\s+[^\s{}]{8,}", re.IGNORECASE)
_TOKEN_HEADERS: Final = frozenset(
    {
        "authorization",
        "api-key",
        "apikey",
        "x-api-key",
        "x-apikey",
        "x-api-token",
        "x-auth-token",
        "x-access-token",
    }
)
_A_TOKEN: Final = re.compile(r"\s*[^\s{}]{8,}\s*")
_TOKEN_IN_QUERY: Final = re.compile(
    r"[?&](?:api[_-]?key|api[_-]?token|auth[_-]?token|access[_-]?token|token|secret|client[_-]?secret|password)=[^&#{}]",
    re.IGNORECASE,
)

_AN_ID: Final = re.compile(r"[A-Z0-9]+")

_STORED: Final = (
    "It is stored unencrypted, and everybody who can see the deliveries can use it. Sign the requests instead, or let a proxy add"
    " it. Otherwise use a token with few rights, and replace it regularly."
)


def token_in_header(name: str, value: str) -> str | None:
    """Return what to tell of a header whose value is a credential as its author wrote it, without variables."""
    known = _KNOWN_TOKEN.search(value)
    if known is not None and known[0].startswith(SECRET_PREFIX):
        return "This looks like a signing secret. Enter it as the Signing secret, and remove it here: a header shows it to everybody on the way."
    if known or _OF_A_SCHEME.match(value) or (name.lower() in _TOKEN_HEADERS and _A_TOKEN.fullmatch(value)):
        return f"This looks like a token. {_STORED}"
    return None


def token_in_url(url: str) -> str | None:
    """Return what to tell of a URL that holds a credential in its query."""
    query = url.partition("#")[0].partition("?")[2]
    if _TOKEN_IN_QUERY.search(f"?{query}") or _KNOWN_TOKEN.search(query):
        return f"The part after ? holds what looks like a token. {_STORED}"
    return None


def beyond_ascii(value: str) -> tuple[str, int] | None:
    """Return what to tell of a header's value that many receivers cannot read, and at which offset."""
    found = next((character for character in value if not character.isascii()), None)
    if found is None:
        return None
    if found in TYPOGRAPHIC_QUOTES:
        message = f"{found} is a typographic quote, which many receivers cannot read in a header. Write \" or ' in its place."
    else:
        shown = found if found.isprintable() else f"U+{ord(found):04X}"
        message = f"Many receivers cannot read {shown} in a header. Use letters from A to Z, digits and common signs, or put it in the body."
    return message, value.index(found)


def media_type(value: str) -> str | None:
    """Return what to tell of a content type that is not that of a JSON body in UTF-8."""
    kind, _, parameters = value.lower().partition(";")
    if "{{" in value:
        return None
    if "json" not in kind:
        return f"The body is JSON, and this says {kind.strip()[:80] or 'nothing'}. Remove this header: application/json is sent then."
    charset = re.search(r"charset\s*=\s*\"?([^\s;\"]*)", parameters)
    if charset is not None and charset[1] not in {"utf-8", "utf8"}:
        return f"The body is sent in UTF-8, and this says {charset[1][:80]}. Write charset=utf-8, or remove it."
    return None


def secret_problems(secret: str) -> list[tuple[str, str]]:
    """Return what to tell of a signing secret, with the code of each; nothing of the secret is repeated."""
    found: list[tuple[str, str]] = []
    inner = secret.strip()
    if secret != inner:
        message = (
            "The secret begins or ends with a space or line break, which counts: the receiver needs the same."
        )
        found.append(("secret_has_spaces", message))
    elif len(inner.split()) > 1 or not inner.isprintable():
        message = "The secret contains a space, a line break or an invisible character, which counts: the receiver needs the same."
        found.append(("secret_has_spaces", message))
    if inner and (inner[0] in _QUOTES or inner[-1] in _QUOTES):
        message = (
            "The secret begins or ends with a quote, which counts. If it was only copied along: remove it."
        )
        found.append(("secret_has_quotes", message))
    elif inner.startswith(SECRET_PREFIX) and signing_key(inner) == inner.encode("utf-8", "surrogatepass"):
        message = "What follows whsec_ is not base64, so part of the secret may be missing. Copy it again."
        found.append(("secret_not_base64", message))
    return found


def wrong_id(target: str, *, to_member: bool) -> str | None:
    """Return what to tell of a target that is no id of the provider's, or one of the other kind."""
    if "{{" in target:
        return None
    if "://" in target:
        return "This is the address of a page, and the id is needed: choose from the list, or copy the id."
    if not _AN_ID.fullmatch(target):
        return "This looks like a name, and the id is needed: choose from the list, or copy the id."
    if to_member and target[0] in "CG":
        return "This is the id of a channel, and that of a person is needed."
    if not to_member and target[0] in "UW":
        return "This is the id of a person, and that of a channel is needed."
    return None
