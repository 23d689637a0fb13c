"""The plugin's own errors. Errors of libraries are translated into these where they enter.

FlowActionsError (of the contract)
├── StorageUnavailable   the database did not answer; what was asked may be tried again
│   └── SchemaOutdated   its tables are of an earlier release; the message says what to run
├── SchemaNewer          the database's tables are of a later release; a command that changes them refuses
├── StorageMisplaced     there cannot be a database where the settings say; the message says why
├── RowInvalid           a value of one row cannot be stored, which says nothing about other rows
├── EgressRefused        a rule forbids sending to this URL or address
├── SendFailed           a receiver gave no answer; the message says why
├── HostFailed           a method or object of the host failed or has the wrong type; the message names it
│   └── HostAnswerInvalid  it returned a wrong type
├── BodyInvalid          a webhook body is no JSON
├── TooLarge             a webhook is larger than may be enqueued; the message says what of it
│   ├── BodyTooLarge     its body
│   └── HeadersTooLarge  its custom headers
├── SealBroken           a sealed secret cannot be opened
└── NotConfigured        a setting is missing; the message names it
"""

from __future__ import annotations

from flowactions_hookspecs import FlowActionsError


class StorageUnavailable(FlowActionsError):
    """The database cannot be reached.

    Attributes:
        code: the error's SQLSTATE, or SQLite's name of it, if it has one.
    """

    def __init__(self, message: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


class SchemaOutdated(StorageUnavailable):
    """The database's tables are of an earlier release."""


class SchemaNewer(FlowActionsError):
    """The database's tables are of a later release."""


class StorageMisplaced(FlowActionsError):
    """The database cannot be where the settings say."""


class RowInvalid(FlowActionsError):
    """A value of a row cannot be stored."""


class EgressRefused(FlowActionsError):
    """Requests may not be sent to this address."""


class SendFailed(FlowActionsError):
    """A request got no answer."""


class HostFailed(FlowActionsError):
    """A method or an object of the host does not do what the contract says."""


class HostAnswerInvalid(HostFailed):
    """A method of the host's returned something of a wrong type."""


class BodyInvalid(FlowActionsError):
    """The body is not valid JSON.

    Attributes:
        line: of the first error, from 1; ``None`` when it is not known.
        column: of that line, from 1, in characters.
    """

    def __init__(self, message: str | None = None, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.column = column


class TooLarge(FlowActionsError):
    """A webhook is larger than may be enqueued.

    Attributes:
        reason: as in a node's result, and the code of a problem.
    """

    reason = "too_large"


class BodyTooLarge(TooLarge):
    """The body is larger than ``FLOWACTIONS_MAX_BODY_BYTES``."""

    reason = "body_too_large"


class HeadersTooLarge(TooLarge):
    """A custom header, or all of them together, are larger than receivers take."""

    reason = "headers_too_large"


class SealBroken(FlowActionsError):
    """The sealed value cannot be opened with the configured encryption keys."""


class NotConfigured(FlowActionsError):
    """A setting is missing."""
