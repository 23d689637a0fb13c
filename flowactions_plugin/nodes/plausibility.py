"""What works as it is, and was hardly meant so: pure rules on the texts of a config.

Each returns what to tell the author; where it is about a part of the text, with the offset of the part.
"""

from __future__ import annotations

import re
from typing import Final

from flowactions_hookspecs.editing import MASK
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

_OF_A_SCHEME: Final = re.compile(r"\s*(?:basic|bearer|token|apikey)\s+([^\s{}]{8,})", re.IGNORECASE)
_TOKEN_HEADER: Final = re.compile(
    r"(?:.*[-_])?(?:token|secret|password|api-?key|access-?key|subscription-key|authorization|cookie)",
    re.IGNORECASE,
)
"""The name of a header whose value is a credential."""

_A_TOKEN: Final = re.compile(r"\s*([^\s{}]{8,})\s*")
_NOT_IN_A_NAME: Final = re.compile(r"[^!#$%&'*+\-.^_`|~0-9A-Za-z]")
_JSON_TYPE: Final = re.compile(r"[^\s/\"',]+/[^\s/\"',]*json")
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)
_TOKEN_IN_QUERY: Final = re.compile(
    r"[?&](?:api[_-]?key|api[_-]?token|auth[_-]?token|access[_-]?token|token|secret|client[_-]?secret|password|sig|signature)=(?=[^&#{}])",
    re.IGNORECASE,
)

_OF_STANDARD_WEBHOOKS: Final = re.compile(r"(?:\b|_)wh(?:sec|sk|pk)[_-]", re.IGNORECASE)
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters without a sign that Python calls printable: fillers, blanks and selectors of variants."""

_AN_ID: Final = re.compile(r"[A-Z0-9]+")
_KINDS: Final = {
    **dict.fromkeys("CG", "a channel"),
    **dict.fromkeys("UW", "a person"),
    "D": "a conversation",
    "T": "a workspace",
    "B": "a bot",
    "A": "an app",
}
"""The first letter of the provider's ids → what they are of."""

_STORED: Final = (
    "It is stored unencrypted, and everybody who can see the deliveries can use it. Sign the requests instead, or let a proxy add"
    " it. Otherwise use a token with few rights, and replace it regularly."
)


def token_in_header(name: str, value: str) -> tuple[str, int] | None:
    """Return what to tell of a header whose value is a credential as its author wrote it, without variables."""
    known = _KNOWN_TOKEN.search(value)
    if known is not None and known[0].startswith(SECRET_PREFIX):
        message = "This looks like a signing secret. Enter it as the Signing secret, and remove it here: a header shows it to everybody on the way."
        return message, known.start()
    found = _OF_A_SCHEME.match(value)
    if found is None and _TOKEN_HEADER.fullmatch(name):
        found = _A_TOKEN.fullmatch(value)
    offset = known.start() if known is not None else found.start(1) if found is not None else None
    return None if offset is None else (f"This looks like a token. {_STORED}", offset)


def token_in_url(url: str) -> tuple[str, int] | None:
    """Return what to tell of a URL that holds a credential in its query."""
    address = url.partition("#")[0]
    begins = address.find("?")
    if begins == -1:
        return None
    if found := _TOKEN_IN_QUERY.search(address, begins):
        offset = found.end()
    elif known := _KNOWN_TOKEN.search(address, begins):
        offset = known.start()
    else:
        return None
    return f"The part after ? holds what looks like a token. {_STORED}", offset


def invisible(text: str) -> int | None:
    """Return the offset of the first character that nobody sees; ``None``: it has none."""
    return next((at for at, each in enumerate(text) if not each.isprintable() or _INVISIBLE.match(each)), None)


def not_in_a_name(name: str) -> int | None:
    """Return the offset of the first character that no header's name can have; ``None``: it has none."""
    inner = name.rstrip()
    found = _NOT_IN_A_NAME.search(inner, len(inner) - len(inner.lstrip()))
    return None if found is None else found.start()


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


def media_type(value: str) -> tuple[str, int] | None:
    """Return what to tell of a content type that is not that of a JSON body in UTF-8."""
    kind = value.lower().partition(";")[0]
    if "{{" in value:
        return None
    if not _JSON_TYPE.fullmatch(kind.strip()):
        message = f"The body is JSON, and this says {kind.strip()[:80] or 'nothing'}. Remove this header: application/json is sent then."
        return message, len(kind) - len(kind.lstrip())
    charset = _CHARSET.search(value, len(kind))
    if charset is not None and charset[1].lower() not in {"utf-8", "utf8"}:
        message = (
            f"The body is sent in UTF-8, and this says {charset[1][:80]}. Write charset=utf-8, or remove it."
        )
        return message, charset.start(1)
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
    elif len(inner.split()) > 1 or invisible(inner) is not None:
        message = "The secret contains a space, a line break or an invisible character, which counts: the receiver needs the same."
        found.append(("secret_has_spaces", message))
    if inner not in {"", MASK} and not inner.strip("*\u2022\u25cf\u00b7"):
        message = "These are the signs that hide a secret, and not the secret. Copy the secret itself."
        found.append(("secret_is_hidden", message))
    elif inner and (inner[0] in _QUOTES or inner[-1] in _QUOTES):
        message = (
            "The secret begins or ends with a quote, which counts. If it was only copied along: remove it."
        )
        found.append(("secret_has_quotes", message))
    elif _OF_STANDARD_WEBHOOKS.search(inner) and signing_key(inner) == inner.encode("utf-8", "surrogatepass"):
        message = "A secret of Standard Webhooks is whsec_ and base64. This is neither that nor a plain secret, and libraries refuse it. Copy it again."
        found.append(("secret_not_base64", message))
    return found


def wrong_id(target: str, *, to_member: bool) -> str | None:
    """Return what to tell of a target that is no id of the provider's, or one of the other kind."""
    if "{" in target:  # told as a variable
        return None
    if "://" in target:
        return "This is the address of a page, and the id is needed: choose from the list, or copy the id."
    if not _AN_ID.fullmatch(target):
        return "This looks like a name, and the id is needed: choose from the list, or copy the id."
    kind = _KINDS.get(target[0])
    if kind in {None, "a person" if to_member else "a channel"} or (target[0] == "D" and not to_member):
        return None
    return f"This is the id of {kind}, and that of {'a person' if to_member else 'a channel'} is needed."
