"""The plugin's own errors. Errors of libraries are translated into these where they enter.

FlowActionsError (of the contract)
├── StorageUnavailable   the database did not answer; what was asked may be tried again
│   └── SchemaOutdated   its tables are of an earlier release; the message says what to run
├── SchemaNewer          the database's tables are of a later release; a command that changes them refuses
├── StorageMisplaced     there cannot be a database where the settings say; the message says why
├── EgressRefused        a rule forbids sending to this URL or address
├── SendFailed           a receiver gave no answer; the message says why
├── BodyInvalid          a webhook body is no JSON
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


class EgressRefused(FlowActionsError):
    """Requests may not be sent to this address."""


class SendFailed(FlowActionsError):
    """A request got no answer."""


class BodyInvalid(FlowActionsError):
    """The body is not valid JSON."""


class SealBroken(FlowActionsError):
    """The sealed value cannot be opened with the configured encryption keys."""


class NotConfigured(FlowActionsError):
    """A setting is missing."""
