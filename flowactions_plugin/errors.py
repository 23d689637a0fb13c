"""The plugin's own errors. Errors of libraries are translated into these where they enter.

FlowActionsError (of the contract)
├── StorageUnavailable   the database did not answer; what was asked may be tried again
│   └── SchemaOutdated   its tables are of an earlier release; the message says what to run
├── RowInvalid           a value of one row cannot be stored, which says nothing about other rows
├── EgressRefused        a rule forbids sending to this URL or address
├── SendFailed           a receiver gave no answer; the message says why
├── HostFailed           a method or object of the host failed or has the wrong type; the message names it
├── BodyInvalid          a webhook body is no JSON
├── SealBroken           a sealed secret cannot be opened
└── NotConfigured        a setting is missing; the message names it
"""

from __future__ import annotations

from flowactions_hookspecs import FlowActionsError


class StorageUnavailable(FlowActionsError):
    """The database cannot be reached."""


class SchemaOutdated(StorageUnavailable):
    """The database's tables are of an earlier release."""


class RowInvalid(FlowActionsError):
    """A value of a row cannot be stored."""


class EgressRefused(FlowActionsError):
    """Requests may not be sent to this address."""


class SendFailed(FlowActionsError):
    """A request got no answer."""


class HostFailed(FlowActionsError):
    """A method or an object of the host does not do what the contract says."""


class BodyInvalid(FlowActionsError):
    """The body is not valid JSON."""


class SealBroken(FlowActionsError):
    """The sealed value cannot be opened with the configured encryption keys."""


class NotConfigured(FlowActionsError):
    """A setting is missing."""
