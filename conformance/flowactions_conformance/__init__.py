"""For host authors: the conformance kit, a reference host, a fake chat provider and a webhook receiver.

What a host author's factory needs is here; ``python -m flowactions_conformance --help`` lists the commands.
"""

from flowactions_conformance.kit.under_test import (
    Action,
    Agent,
    Branch,
    Env,
    Experience,
    Factory,
    Flow,
    HostDriver,
    HostUnderTest,
    Item,
    Login,
    Loop,
    Organization,
    Step,
    SubFlow,
    Trigger,
    TriggerAction,
    TriggerRef,
    Turn,
    World,
)

__all__ = [
    "Action",
    "Agent",
    "Branch",
    "Env",
    "Experience",
    "Factory",
    "Flow",
    "HostDriver",
    "HostUnderTest",
    "Item",
    "Login",
    "Loop",
    "Organization",
    "Step",
    "SubFlow",
    "Trigger",
    "TriggerAction",
    "TriggerRef",
    "Turn",
    "World",
]
