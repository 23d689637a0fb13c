"""What the probe tells of a host that has started: the palette as the plugins gave it, and what the host provides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowactions_conformance.kit.outcomes import CheckFailed
from flowactions_conformance.kit.trial import Trial

CLOSED = (
    "the lifespan of FlowActions is not entered: hand actions.lifespan to the app, or enter it in the app's own lifespan",
)

HIDDEN = ("types that are not available are left out: show them as unavailable, with their reason",)


def opened(trial: Trial) -> Mapping[str, Any]:
    """Return what the probe reported when the host's lifespan was opened.

    Raises:
        CheckFailed: it was never opened.
    """
    reports = trial.reports("opened")
    if not reports:
        raise CheckFailed(
            "the plugins were never opened, so what they offer cannot be compared",
            expected="actions.lifespan() is open while the app is served",
            actual="it was not entered",
            causes=CLOSED,
        )
    return reports[-1].data


def given(trial: Trial, name: str) -> Mapping[str, Any]:
    """Return what a node type said of itself inside the host: `NodeType.describe`."""
    found: Mapping[str, Any] = next(entry for entry in opened(trial)["palette"] if entry["name"] == name)
    return found


async def shown(trial: Trial, name: str) -> Mapping[str, Any]:
    """Return a node type's entry in the editor's palette.

    Raises:
        CheckFailed: it is not there.
    """
    await trial.seed()
    palette = await trial.call("palette", trial.author)
    found: Mapping[str, Any] | None = next((entry for entry in palette if entry.get("name") == name), None)
    if found is None:
        raise CheckFailed(
            f"the palette does not offer {name!r}",
            expected=name,
            actual=[entry.get("name") for entry in palette],
            causes=trial.check.causes if given(trial, name)["available"] else HIDDEN,
        )
    return found


def provides(trial: Trial, method: str) -> bool:
    """Return whether the host has one of the optional methods of `Host`."""
    return method in opened(trial)["provides"]
