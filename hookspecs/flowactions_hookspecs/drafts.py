"""A node while an author edits it: what is checked, what a preview shows, what a test returns, what a picker lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from flowactions_hookspecs.base import ContractStruct
from flowactions_hookspecs.webhooks import Header

if TYPE_CHECKING:
    from flowactions_hookspecs.nodes import Node
else:
    # nodes.py imports this module; a draft is not decoded from the wire.
    Node = Any


class NodeDraft(ContractStruct, frozen=True, kw_only=True):
    """A node as its author has it in the editor, saved or not.

    Args:
        organization_id: the tenant of the author.
        agent_id: the agent whose flow is edited.
        node: the node; its config may be incomplete or wrong.
        ask_provider: whether `check` may ask a provider over the network, for example whether a bot is in a channel.
    """

    organization_id: str
    agent_id: str
    node: Node
    ask_provider: bool = False


class ConfigProblem(ContractStruct, frozen=True, kw_only=True):
    """Something that is wrong with a config.

    Args:
        path: the field, and the position in it, for example ``("webhookHeaders", 0, "key")``; empty: the whole config.
        code: a stable word for programs.
        message: what the author should know or do.
        severity: ``error`` (the node will not work), ``warning`` (it works, perhaps not as meant).
        line: of the field's text, from 1, where a text has a syntax.
        column: of that line, from 1, in characters.
    """

    path: Sequence[str | int] = ()
    code: str
    message: str
    severity: Literal["error", "warning"] = "error"
    line: int | None = None
    column: int | None = None


class Preview(ContractStruct, frozen=True, kw_only=True):
    """What would leave if the node ran now. Secrets are masked; nothing was sent or written.

    Args:
        method: of a request.
        url: of a request.
        headers: of a request, in their order.
        body: of a request, as text.
        target: of a message: the channel or member.
        text: of a message.
        problems: what keeps the node from working, or works otherwise than it looks.
    """

    method: str | None = None
    url: str | None = None
    headers: Sequence[Header] = ()
    body: str | None = None
    target: str | None = None
    text: str | None = None
    problems: Sequence[ConfigProblem] = ()


class TestOutcome(ContractStruct, frozen=True, kw_only=True):
    """The outcome of testing a node: one real send by the real path.

    Args:
        status: ``sent`` (a message), ``delivered`` or ``failed`` (a webhook whose attempt has ended, or a message that
            was not sent), ``pending`` (the attempt has not ended in time), ``skipped`` (nothing was sent),
            ``limited`` (too many tests in this minute).
        reason: a stable word for programs.
        message: what the author should know or do.
        status_code: the receiver's answer.
        response: the first part of the receiver's answer, as text.
        duration_ms: how long the attempt took, in milliseconds.
        delivery_id: the outbox row's id, when there is one.
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
    """One choice: the id is kept in the config, the label is shown, the note helps to tell like labels apart."""

    id: str
    label: str
    note: str | None = None


class PickerPage(ContractStruct, frozen=True, kw_only=True):
    """What a picker's route answers to ``GET ?search=&cursor=``.

    Args:
        data: the choices of this page.
        next_cursor: given as ``cursor``, returns the next page; ``None``: this was the last.
        notice: what the author should know, for example that the list may be incomplete.
    """

    data: Sequence[PickerChoice] = ()
    next_cursor: str | None = None
    notice: str | None = None
