"""The contract between a flow-engine host and its flow-action plugins."""

from flowactions_hookspecs.errors import (
    AlreadyStarted,
    FlowActionsError,
    HostInvalid,
    NotStarted,
    OriginGone,
    PluginInvalid,
    QuestionRequired,
    SettingsInvalid,
    StartFailed,
    TransactionInvalid,
)
from flowactions_hookspecs.host import Agent, ApiPrincipal, AuthEvent, DashboardPrincipal, Host
from flowactions_hookspecs.loader import FlowActions
from flowactions_hookspecs.logic import (
    Delivery,
    ExperienceTriggerRef,
    Firing,
    FlowNodeOrigin,
    Header,
    LogicAction,
    LogicActionOrigin,
    LogicActionRef,
    LogicActionType,
    NodeTriggerRef,
    Origin,
    Receipt,
)
from flowactions_hookspecs.markers import PROJECT, hookimpl, hookspec
from flowactions_hookspecs.nodes import Advanced, Node, NodeResult, NodeType, StepListener, Walk
from flowactions_hookspecs.openapi import OPENAPI_COMPONENTS
from flowactions_hookspecs.schema import config_schema
from flowactions_hookspecs.tasks import BackgroundTask

__all__ = [
    "OPENAPI_COMPONENTS",
    "PROJECT",
    "Advanced",
    "Agent",
    "AlreadyStarted",
    "ApiPrincipal",
    "AuthEvent",
    "BackgroundTask",
    "DashboardPrincipal",
    "Delivery",
    "ExperienceTriggerRef",
    "Firing",
    "FlowActions",
    "FlowActionsError",
    "FlowNodeOrigin",
    "Header",
    "Host",
    "HostInvalid",
    "LogicAction",
    "LogicActionOrigin",
    "LogicActionRef",
    "LogicActionType",
    "Node",
    "NodeResult",
    "NodeTriggerRef",
    "NodeType",
    "NotStarted",
    "Origin",
    "OriginGone",
    "PluginInvalid",
    "QuestionRequired",
    "Receipt",
    "SettingsInvalid",
    "StartFailed",
    "StepListener",
    "TransactionInvalid",
    "Walk",
    "config_schema",
    "hookimpl",
    "hookspec",
]
