"""For host authors: the conformance kit, a reference host, a fake chat provider and a webhook receiver.

What a host author's factory needs is here; ``python -m flowactions_conformance --help`` lists the commands.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from flowactions_conformance.kit.in_pytest import conformance_suite
    from flowactions_conformance.kit.under_test import (
        Action,
        Agent,
        Branch,
        Env,
        Experience,
        Factory,
        Flow,
        HostDriver,
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
        one_host_per_process,
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
    "conformance_suite",
    "one_host_per_process",
]


def __getattr__(name: str) -> typing.Any:
    """Import what is asked for only then: a host that loads its plugins imports this package, for the probe's entry point."""
    if name == "conformance_suite":
        from flowactions_conformance.kit.in_pytest import conformance_suite  # noqa: PLC0415

        return conformance_suite
    if name in __all__:
        from flowactions_conformance.kit import under_test  # noqa: PLC0415

        return getattr(under_test, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
