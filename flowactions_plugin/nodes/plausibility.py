"""Credentials, secrets and ids that were hardly meant so: pure rules on the texts of a config, each with what to tell."""

from __future__ import annotations

import re
from typing import Final

from flowactions_hookspecs.editing import MASK
from flowactions_plugin.egress.signature import signing_key

TYPOGRAPHIC_QUOTES: Final = "\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\uff02\u2018\u2019\u201a\u201b\u2032"
_QUOTES: Final = f"\"'`{TYPOGRAPHIC_QUOTES}"

_KNOWN_TOKEN: Final = re.compile(
    r"\b((?:xox[abeoprs]-|xapp-|[rs]k_(?:live|test)_|gh[oprsu]_|github_pat_|glpat-|whsec_)[\w.\-+/=]{8,}"
    r"|AKIA[0-9A-Z]{16}\b|AIza[\w\-]{35}|eyJ[\w\-]{8,}\.eyJ[\w\-]{8,})",
    re.ASCII,
)
"""Tokens of providers that mark them, and JSON Web Tokens."""

_OF_A_SCHEME: Final = re.compile(r"\s*(?:basic|bearer|token|apikey)\s+([^\s{}]{8,})", re.IGNORECASE)
_A_TOKEN: Final = re.compile(r"\s*([^\s{}]{8,})\s*")
_TOKEN_HEADER: Final = re.compile(
    r"(?:.*[-_])?(?:token|secret|password|api-?key|access-?key|subscription-key|authorization|cookie)",
    re.IGNORECASE,
)
_TOKEN_IN_QUERY: Final = re.compile(
    r"[?&](?:(?:api|auth|access)[_-]?token|api[_-]?key|token|(?:client[_-]?)?secret|password|sig|signature)=(?=[^&#{}])",
    re.IGNORECASE,
)
_OF_STANDARD_WEBHOOKS: Final = re.compile(r"(?:\b|_)wh(?:sec|sk|pk)[_-]", re.IGNORECASE)
_BLANKS: Final = " \t\r\n"
_INVISIBLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)
"""Characters without a sign that Python calls printable: fillers, blanks and selectors of variants."""

_IN_CLEAR: Final = (
    "This looks like a token, and it is stored unencrypted. Sign the requests instead, or use a token with few rights and"
    " replace it regularly."
)


def token_in_header(name: str, value: str) -> tuple[str, int] | None:
    """Return what to tell of a credential in a header's value, and its offset; one that is a variable is none."""
    found = _KNOWN_TOKEN.search(value) or _OF_A_SCHEME.match(value)
    if found is None and _TOKEN_HEADER.fullmatch(name):
        found = _A_TOKEN.fullmatch(value)
    return None if found is None else (_IN_CLEAR, found.start(1))


def token_in_url(url: str) -> tuple[str, int] | None:
    """Return what to tell of a credential in a URL's query, and its offset."""
    address, _, query = url.partition("#")[0].partition("?")
    found = _TOKEN_IN_QUERY.search(f"?{query}")
    if found is not None:
        return _IN_CLEAR, len(address) + found.end()
    known = _KNOWN_TOKEN.search(query)
    return None if known is None else (_IN_CLEAR, len(address) + 1 + known.start())


def invisible(text: str) -> tuple[str, int] | None:
    """Return what to tell of the first character that nobody sees, blanks at the ends excepted, and its offset."""
    begins = len(text) - len(text.lstrip(_BLANKS))
    for at, each in enumerate(text.strip(_BLANKS), begins):
        if not each.isprintable() or _INVISIBLE.match(each):
            return f"This is an invisible character (U+{ord(each):04X}). Remove it.", at
    return None


def secret_problems(secret: str) -> list[tuple[str, str]]:
    """Return the code and the message of what is wrong with a signing secret; nothing of the secret is repeated."""
    found: list[tuple[str, str]] = []
    inner = secret.strip()
    if secret != inner or len(inner.split()) > 1 or invisible(inner):
        message = "The secret contains a space, a line break or an invisible character. It counts: the receiver needs the same."
        found.append(("secret_has_spaces", message))
    if inner not in {"", MASK} and not inner.strip("*\u2022\u25cf\u00b7"):
        found.append(("secret_is_hidden", "These are the signs that hide a secret. Copy the secret itself."))
    elif inner and (inner[0] in _QUOTES or inner[-1] in _QUOTES):
        found.append(
            (
                "secret_has_quotes",
                "The secret begins or ends with a quote. It counts: the receiver needs the same.",
            )
        )
    elif _OF_STANDARD_WEBHOOKS.search(inner) and signing_key(inner) == inner.encode("utf-8", "surrogatepass"):
        message = "A secret of Standard Webhooks is whsec_ and base64. This is not, and libraries refuse it. Copy it again."
        found.append(("secret_not_base64", message))
    return found


def wrong_id(target: str, *, to_member: bool) -> str | None:
    """Return what to tell of a target that is no id of the provider's, or one of the other kind."""
    if "{" in target:  # told as a variable
        return None
    if not re.fullmatch("[A-Z0-9]+", target):
        return "This is no id: choose from the list, or copy the id."
    if target[0] in ("UW" if to_member else "CGD") or target[0] not in "ABCDGTUW":
        return None
    return f"This is not the id of {'a person' if to_member else 'a channel'}: choose from the list, or copy the id."
