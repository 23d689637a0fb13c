"""The errors of the contract.

FlowActionsError
├── HostInvalid         the host object lacks something that the contract asks for
├── PluginInvalid       a plugin broke the contract; the message names it
├── SettingsInvalid     settings that cannot be used; the message lists every one of them
├── StartFailed         a plugin's lifespan could not be opened; the message names it
├── NotStarted          the facade was used before its lifespan was entered
├── AlreadyStarted      the lifespan was entered a second time while it was open
├── TransactionInvalid  a transaction that was given cannot be joined; a ValueError, too
├── WrongLoop           the facade was used from another event loop than that of its lifespan
├── AgentNotFound       a draft names an agent that the organization does not have; a ValueError, too
├── NotQueued           a webhook could not be enqueued, because the database failed; nothing was written
├── OriginGone          raised by a host: the action behind a delivery no longer exists
└── QuestionRequired    raised by a host: a survey-question trigger was addressed without its question

HostWarning, a UserWarning, is given for what is probably a mistake in a host.

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
    """The lifespan is not running: enter `actions.lifespan()` before the first request is served."""


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


class QuestionRequired(FlowActionsError):
    """This action belongs to a survey question: name it with questionId."""


class HostWarning(UserWarning):
    """Something about a host object is probably a mistake."""
