"""The sets of bulk actions: which rows belong to one, as it was shown, and the token that names it. Pure, no I/O."""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from typing import Final, Literal, TypeAlias, get_args

import msgspec

from flowactions_plugin.clock import RANDOM_BYTES, new_id
from flowactions_plugin.deliveries.filters import Filter
from flowactions_plugin.errors import ActionInvalid
from flowactions_plugin.log_text import is_unicode
from flowactions_plugin.operators.scope import Scope

Kind: TypeAlias = Literal["retry", "cancel", "delete", "resend"]
"""What is done: ``retry`` makes dead rows due, ``cancel`` ends rows that wait, ``delete`` removes dead rows, ``resend`` sends
delivered rows again, as new rows."""

KINDS: Final[frozenset[str]] = frozenset(get_args(Kind))

SENDING: Final[frozenset[str]] = frozenset({"retry", "resend"})
"""The kinds after which rows are sent."""

MOST_RATE: Final = 100_000.0
MOST_CANARY: Final = 1000

MOST_RESENT: Final = 100_000
"""How many rows are sent again at the most. Delivered rows are the most of a table: so many bound what a preview counts."""

TOKEN_CHARACTERS: Final = 100_000
"""A token holds the filter, and that up to a thousand ids."""

_LONGEST: Final = 4096

_UNUSABLE: Final = "The token of the preview is not valid: look at the rows again."


class Selection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of rows, as it was shown to somebody.

    Attributes:
        kind: what it is for.
        organization_id: whose rows; ``None``: those of all organizations.
        filter: which rows.
        as_of: when it was counted, Unix milliseconds.
        count: how many rows it had.
    """

    kind: Kind
    organization_id: str | None
    filter: Filter
    as_of: int
    count: int = 0


def write_token(selection: Selection) -> str:
    """Return the token of a set. It proves nothing: whoever holds one may do to the set only what they may do anyway."""
    return base64.urlsafe_b64encode(msgspec.json.encode(selection)).decode().rstrip("=")


def once_id(selection: Selection) -> str:
    """Return the id of the action that is done to a set, if it is to be done once, however often its token is sent."""
    digest = hashlib.sha256(msgspec.json.encode(selection)).digest()
    return new_id(selection.as_of / 1000, digest[:RANDOM_BYTES])


def read_token(scope: Scope, kind: str, token: str) -> Selection:
    """Return the set that a token names.

    Raises:
        ActionInvalid: it is none, or one of another kind, or of rows outside the scope.
    """
    if len(token) > TOKEN_CHARACTERS:
        raise ActionInvalid(_UNUSABLE)
    try:
        text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        selection = msgspec.json.decode(text, type=Selection)
        check_filter(selection.filter, selection.kind)
    except (msgspec.MsgspecError, binascii.Error, ValueError, UnicodeError, RecursionError):
        raise ActionInvalid(_UNUSABLE) from None
    if selection.kind != kind or selection.organization_id != scope.organization_id:
        raise ActionInvalid("The token is of another preview: look at the rows again.")
    if not (0 <= selection.count < 1 << 53 and 0 <= selection.as_of < 1 << 53):
        raise ActionInvalid(_UNUSABLE)
    return selection


def acts_at_once(kind: Kind, wanted: Filter) -> bool:
    """Return whether an action on a set cannot be stopped before it begins: a cancellation, or a retry of one delivery."""
    return kind == "cancel" or (kind == "retry" and wanted.ids is not None and len(wanted.ids) == 1)


def names_rows(wanted: Filter) -> bool:
    """Return whether a filter names rows, events or keys, so that few rows meet it."""
    return any(each is not None for each in (wanted.ids, wanted.event_id, wanted.idempotency_key))


def check_filter(wanted: Filter, kind: Kind) -> None:
    """Check that every value of a filter can be a parameter of a query, and that what is sent again is bounded.

    Raises:
        ActionInvalid: one of them cannot, or it is not.
    """
    if kind == "resend" and wanted.created_from is None and not names_rows(wanted):
        raise ActionInvalid(
            "Say which deliveries to send again: give ids, an event id or an idempotency key, or the time from which they"
            " were enqueued."
        )
    for value in msgspec.structs.astuple(wanted):
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str) and (len(each) > _LONGEST or "\0" in each or not is_unicode(each)):
                raise ActionInvalid(
                    "A value of the filter is too long, or holds characters that no row can hold."
                )
            if isinstance(each, int) and not -(1 << 53) < each < 1 << 53:
                raise ActionInvalid("A time of the filter is not one.")


def check_options(kind: str, *, reset_attempts: bool, rate: float | None, canary: int) -> None:
    """Check the options of an action.

    Raises:
        ActionInvalid: one of them cannot be used; the message says which, and what is allowed.
    """
    check_rate(rate)
    if not 0 <= canary <= MOST_CANARY:
        raise ActionInvalid(f"The canary must be between 0 and {MOST_CANARY} rows.")
    if kind not in SENDING and (rate is not None or canary or reset_attempts):
        raise ActionInvalid(f"Rate, canary and attempts are for what is sent, not for {kind}.")
    if kind == "resend" and reset_attempts:
        raise ActionInvalid("What is sent again has all of its attempts.")


def check_rate(rate: float | None) -> None:
    """Check a rate.

    Raises:
        ActionInvalid: it cannot be used.
    """
    if rate is not None and not (math.isfinite(rate) and 0.01 <= rate <= MOST_RATE):
        raise ActionInvalid(f"The rate must be between 0.01 and {MOST_RATE:g} rows per second.")
