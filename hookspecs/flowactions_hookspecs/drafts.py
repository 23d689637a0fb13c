"""A node while an author edits it: problems, preview, test outcome and picker pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.webhooks import Header


class ConfigProblem(ContractStruct, frozen=True, kw_only=True):
    """Something that is wrong with a config.

    Args:
        path: the field, and the position in it, for example ``("webhookHeaders", 0, "key")``; empty: the whole config.
        code: a stable word for programs.
        message: what the author should know or do.
        severity: ``error`` (the node will not work), ``warning`` (it works, but perhaps not as the author
            intended).
        line: line in the field's text, from 1; ``None``: the text has no syntax.
        column: column in that line, from 1, in characters.
    """

    path: Sequence[str | int] = ()
    code: str
    message: str
    severity: Literal["error", "warning"] = "error"
    line: int | None = None
    column: int | None = None


class Preview(ContractStruct, frozen=True, kw_only=True):
    """What the node would send if it ran now. Secrets are masked; nothing was sent or written.

    Args:
        method: the request's method.
        url: the request's URL.
        headers: the request's headers, in their order.
        body: the request's body, as text.
        target: the message's channel or member.
        text: the message's text.
        problems: why the node does not work, or how it works differently than it looks.
    """

    method: str | None = None
    url: str | None = None
    headers: Sequence[Header] = ()
    body: str | None = None
    target: str | None = None
    text: str | None = None
    problems: Sequence[ConfigProblem] = ()


class TestOutcome(ContractStruct, frozen=True, kw_only=True):
    """The outcome of testing a node: one real send by the code of real deliveries.

    Args:
        status: ``sent``: a message was posted. ``delivered``: the receiver accepted the webhook. ``failed``: it did not,
            or the message was not sent. ``pending``: the attempt has not ended in time. ``skipped``: nothing was
            sent. ``limited``: too many tests in this minute.
        reason: a stable word for programs.
        message: what the author should know or do.
        status_code: the receiver's answer.
        response: the first part of the receiver's answer, as text.
        duration_ms: how long the attempt took, in milliseconds.
        delivery_id: the outbox row's id; ``None``: no row was written.
    """

    __test__ = False  # not a test, whatever its name begins with

    status: Literal["sent", "delivered", "failed", "pending", "skipped", "limited"]
    reason: str | None = None
    message: str | None = None
    status_code: int | None = None
    response: str | None = None
    duration_ms: int | None = None
    delivery_id: str | None = None


class PickerChoice(ContractStruct, frozen=True, kw_only=True):
    """One choice: the config stores the id, the author sees the label; the note distinguishes equal labels."""

    id: str
    label: str
    note: str | None = None


class PickerPage(ContractStruct, frozen=True, kw_only=True):
    """The answer of a picker's route to ``GET ?search=&cursor=``.

    Args:
        data: the choices of this page.
        next_cursor: returns the next page, if given as ``cursor``; ``None``: this was the last page.
        notice: a hint for the author, for example that the list may be incomplete.
    """

    data: Sequence[PickerChoice] = ()
    next_cursor: str | None = None
    notice: str | None = None
