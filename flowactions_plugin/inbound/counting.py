"""Counts inbound requests by what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from flowactions_plugin.telemetry import names
from flowactions_plugin.telemetry.telemetry import Telemetry

Result: TypeAlias = Literal["processed", "duplicate", "acknowledged", "refused", "invalid", "failed"]
Count: TypeAlias = Callable[[Result], None]


def counter(telemetry: Telemetry, source: Literal["auth", "chat"]) -> Count:
    """Return what counts the requests of a provider."""

    def count(result: Result) -> None:
        telemetry.meters.count(names.INBOUND, source=source, result=result)

    return count
