"""The errors of the contract.

FlowActionsError
├── HostInvalid         the host object lacks something that the contract requires
├── PluginInvalid       a plugin broke the contract; the message names it
├── SettingsInvalid     settings cannot be used; the message lists all of them
├── StartFailed         a plugin's lifespan could not be opened; the message names it
├── NotStarted          the facade was used before its lifespan was entered
├── AlreadyStarted      the lifespan was entered a second time while it was open
├── TransactionInvalid  a given transaction cannot be joined; also a ValueError
├── WrongLoop           the facade was used from another event loop than that of its lifespan
├── AgentNotFound       a draft names an agent that the organization does not have; also a ValueError
├── NotQueued           a webhook could not be enqueued, because the database failed
├── OriginGone          raised by a host: the action of a delivery no longer exists
│   └── OriginUnknown   raised by the default `Host.signing_secret`, which did not find it
└── QuestionRequired    raised by a host: the trigger belongs to a survey question, and the call names none

HostWarning, a UserWarning, reports a probable mistake in a host.

The first line of a class's docstring is its default message.
"""

from __future__ import annotations


class FlowActionsError(Exception):
    """Something went wrong between a host and its flow-action plugins."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class HostInvalid(FlowActionsError):
    """The host object does not fulfil the contract."""


class PluginInvalid(FlowActionsError):
    """A plugin broke the contract."""


class SettingsInvalid(FlowActionsError):
    """The settings cannot be used."""


class StartFailed(FlowActionsError):
    """A plugin could not be started."""


class NotStarted(FlowActionsError):
    """The lifespan is not running: enter `actions.lifespan()`, or serve the wrapped app by a server that sends a lifespan."""


class AlreadyStarted(FlowActionsError):
    """The lifespan is already running: enter `actions.lifespan()` once per process."""


class TransactionInvalid(FlowActionsError, ValueError):
    """The transaction cannot be joined."""


class WrongLoop(FlowActionsError, RuntimeError):
    """This belongs to the event loop of its lifespan: from a thread or another loop, use `actions.call(…)`."""


class AgentNotFound(FlowActionsError, ValueError):
    """No agent has this id."""


class NotQueued(FlowActionsError):
    """The database did not answer, so the webhook was not queued: try again."""


class OriginGone(FlowActionsError):
    """The action that enqueued this delivery no longer exists."""


class OriginUnknown(OriginGone):
    """The host does not know the node or action of this delivery."""


class QuestionRequired(FlowActionsError):
    """This action belongs to a survey question: name it with questionId."""


class HostWarning(UserWarning):
    """Something about a host object is probably a mistake."""
