"""The contract between a flow-engine host and its flow-action plugins."""

import typing

from flowactions_hookspecs.actions import FlowActions
from flowactions_hookspecs.base import CONTRACT_VERSION
from flowactions_hookspecs.drafts import (
    ConfigProblem,
    PickerChoice,
    PickerPage,
    Preview,
    TestOutcome,
)
from flowactions_hookspecs.errors import (
    AgentNotFound,
    AlreadyStarted,
    FlowActionsError,
    HostInvalid,
    HostWarning,
    NotQueued,
    NotStarted,
    OriginGone,
    PluginInvalid,
    QuestionRequired,
    SettingsInvalid,
    StartFailed,
    TransactionInvalid,
    WrongLoop,
)
from flowactions_hookspecs.host import (
    Agent,
    ApiPrincipal,
    AuthEvent,
    DashboardPrincipal,
    Host,
    Operator,
    provides,
)
from flowactions_hookspecs.logic import Firing, LogicAction, LogicActionType
from flowactions_hookspecs.markers import PROJECT, hookimpl, hookspec
from flowactions_hookspecs.nodes import (
    Advanced,
    Deferred,
    Eager,
    InTransaction,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    Walk,
)
from flowactions_hookspecs.origins import (
    ChatNodeOrigin,
    ExperienceTriggerRef,
    FlowNodeOrigin,
    HostOrigin,
    LogicActionOrigin,
    LogicActionRef,
    NodeTriggerRef,
    Origin,
    PluginOrigin,
    UnsignedTestOrigin,
)
from flowactions_hookspecs.request import Request, ScopeRequest
from flowactions_hookspecs.runtime import PreparedWebhook, Runtime
from flowactions_hookspecs.schema import config_schema
from flowactions_hookspecs.tasks import BackgroundTask
from flowactions_hookspecs.webhooks import (
    Delivery,
    DeliveryAlert,
    Header,
    OutboundWebhook,
    Receipt,
)

if typing.TYPE_CHECKING:
    from flowactions_hookspecs.openapi import OPENAPI_COMPONENTS
else:

    def __getattr__(name: str) -> typing.Any:
        """Imports what needs Litestar only when it is asked for; unseen by type checkers, which would accept any name."""
        if name == "OPENAPI_COMPONENTS":
            from flowactions_hookspecs.openapi import OPENAPI_COMPONENTS  # noqa: PLC0415

            return OPENAPI_COMPONENTS
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CONTRACT_VERSION",
    "OPENAPI_COMPONENTS",
    "PROJECT",
    "Advanced",
    "Agent",
    "AgentNotFound",
    "AlreadyStarted",
    "ApiPrincipal",
    "AuthEvent",
    "BackgroundTask",
    "ChatNodeOrigin",
    "ConfigProblem",
    "DashboardPrincipal",
    "Deferred",
    "Delivery",
    "DeliveryAlert",
    "Eager",
    "ExperienceTriggerRef",
    "Firing",
    "FlowActions",
    "FlowActionsError",
    "FlowNodeOrigin",
    "Header",
    "Host",
    "HostInvalid",
    "HostOrigin",
    "HostWarning",
    "InTransaction",
    "LogicAction",
    "LogicActionOrigin",
    "LogicActionRef",
    "LogicActionType",
    "Node",
    "NodeDraft",
    "NodeResult",
    "NodeTriggerRef",
    "NodeType",
    "NotQueued",
    "NotStarted",
    "Operator",
    "Origin",
    "OriginGone",
    "OutboundWebhook",
    "PickerChoice",
    "PickerPage",
    "PluginInvalid",
    "PluginOrigin",
    "PreparedWebhook",
    "Preview",
    "QuestionRequired",
    "Receipt",
    "Request",
    "Runtime",
    "ScopeRequest",
    "SettingsInvalid",
    "StartFailed",
    "TestOutcome",
    "TransactionInvalid",
    "UnsignedTestOrigin",
    "Walk",
    "WrongLoop",
    "config_schema",
    "hookimpl",
    "hookspec",
    "provides",
]
