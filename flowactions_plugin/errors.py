"""The plugin's own errors. Errors of libraries are translated into these where they enter.

FlowActionsError (of the contract)
├── StorageUnavailable     the database did not answer; the operation may be repeated
│   └── SchemaOutdated     its tables are of an earlier release; the message says what to do
├── SchemaNewer            the database's tables are of a later release; commands that change them refuse
├── SealBroken             a sealed secret cannot be opened
├── NotConfigured          a setting is missing; the message names it
├── HostFailed             a method or object of the host failed or has the wrong type; the message names it
├── NodeFailed             a node type of a plugin does not do what the contract says; the message says what
│   └── TransactionEnded   its write has ended, or tried to end, the transaction that it was given
├── LeaseLost              this process was too slow, and another one has the lease
├── EgressRefused          a rule forbids sending to this URL or address
├── SendFailed             a receiver gave no answer; the message says why
│   ├── ClosedKept         it did not take a request on a connection that it had answered on before; of egress.connection
│   ├── NotHttp            what it answered is not HTTP; of egress.response_reader
│   ├── Unresolved         its name has no address; of egress.dialer
│   └── ProxyFailed        the egress proxy let nothing through to it; of egress.tunnel
├── BodyInvalid            a webhook body is not JSON
├── TooLarge               a webhook is larger than allowed; the message says which part
│   ├── BodyTooLarge       its body
│   └── HeadersTooLarge    its custom headers
├── ActionUnusable         a logic action cannot be enqueued; of logic.dispatch
├── RateExceeded           an agent has made too many calls; of logic.dispatch
├── ChatRefused            the chat provider refused or did not answer; of chat.failures
│   └── AnswerTooLarge     its answer is larger than what is read
├── NotConnected           the organization has no chat connection
├── ConnectionChanged      the chat connection is another than the one that was shown
├── NoDefaultChannel       the chat connection has no default channel
├── OAuthFailed            an install did not create a connection; of chat.oauth
├── NotAuthentic           an inbound request is not signed by its provider; of inbound.requests
├── FilterInvalid          a search field cannot be read; the message names it and says what is allowed
├── ActionInvalid          a bulk action or a pause cannot be made as it is asked for; the message says why
│   ├── ActionForbidden    an operator has begun it, and only operators may end it
│   └── TooManyPauses      the organization has paused as many destinations as it may
├── RequestInvalid         a request's body is not JSON that all parsers read alike, or holds no valid event
├── Problem                an answer other than success; of http.problems
├── SignInNeeded           nobody is signed in who may see an operator page; of pages.guard
└── CannotRun              the command line cannot be used

A class that needs more than a message is defined in the module named here; all others are defined below.
"""

from __future__ import annotations

from flowactions_hookspecs import FlowActionsError


class StorageUnavailable(FlowActionsError):
    """The database cannot be reached.

    Attributes:
        code: the error's SQLSTATE, or SQLite's name of it, if it has one.
        repeatable: whether a transaction of the plugin's own was rolled back because it conflicted with another one.
        may_be_written: whether the database was asked to commit and did not answer.
        obstacle: who holds a lock, or which rights are missing, for operators; ``None``: it is not known.
    """

    def __init__(self, message: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.repeatable = False
        self.may_be_written = False
        self.obstacle: str | None = None


class SchemaOutdated(StorageUnavailable):
    """The database's tables are of an earlier release."""


class SchemaNewer(FlowActionsError):
    """The database's tables are of a later release."""


class EgressRefused(FlowActionsError):
    """Requests may not be sent to this address.

    Attributes:
        offset: in a URL, of what is wrong in it, in characters; ``None``: not known.
    """

    offset: int | None = None


class SendFailed(FlowActionsError):
    """A request got no answer."""


class HostFailed(FlowActionsError):
    """A method or an object of the host does not do what the contract says."""


class NodeFailed(FlowActionsError):
    """A node type does not do what the contract says."""


class TransactionEnded(NodeFailed):
    """A write may not commit, roll back or close the transaction that it is given, nor leave a SAVEPOINT open."""


class LeaseLost(FlowActionsError):
    """The lease was reclaimed by another process."""


class BodyInvalid(FlowActionsError):
    """The body must be JSON.

    Attributes:
        reason: as in a node's result, and the code of a problem.
        line: of the first error, from 1; ``None`` when it is not known.
        column: of that line, from 1, in characters.
    """

    reason = "invalid_body"

    def __init__(self, message: str | None = None, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class TooLarge(FlowActionsError):
    """A webhook is larger than allowed.

    Attributes:
        reason: as in a node's result, and the code of a problem.
    """

    reason = "too_large"


class BodyTooLarge(TooLarge):
    """The body is larger than ``FLOWACTIONS_MAX_BODY_BYTES``."""

    reason = "body_too_large"


class HeadersTooLarge(TooLarge):
    """A custom header, or all of them together, are larger than receivers accept."""

    reason = "headers_too_large"


class SealBroken(FlowActionsError):
    """The sealed value cannot be opened with the configured encryption keys."""


class NotConfigured(FlowActionsError):
    """A setting is missing."""


class NotConnected(FlowActionsError):
    """The organization has no chat workspace connected."""


class ConnectionChanged(FlowActionsError):
    """The chat connection is another than the one that was shown, or its default channel is."""


class NoDefaultChannel(FlowActionsError):
    """The connection has no default channel: choose one first."""


class FilterInvalid(FlowActionsError):
    """A field of a search cannot be read.

    Attributes:
        field: its name, as it was given.
    """

    def __init__(self, message: str | None = None, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ActionInvalid(FlowActionsError):
    """A bulk action or a pause cannot be made as it is asked for."""


class ActionForbidden(ActionInvalid):
    """An operator has begun it: only operators may end it."""


class TooManyPauses(ActionInvalid):
    """As many destinations are paused as may be."""


class RequestInvalid(FlowActionsError):
    """The body of a request cannot be used."""


class CannotRun(FlowActionsError):
    """The command line or what it names cannot be used."""
