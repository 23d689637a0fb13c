"""Deliveries as the list of their organization has them, and how one is ended and sent again."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from flowactions_conformance.kit.hosts.limits import Late
from flowactions_conformance.kit.trial import POLL_SECONDS, Trial

LIST: Final = "/v1/webhooks/outbox"
UNKNOWN: Final = "the host does not know this node or action"
"""How the plugin begins to say why a delivery waits, which is asked for again before it is dead."""

ALWAYS: Final = 999
"""For `Trial.hook`: a receiver that answers with 500 however often it is asked."""


async def until_dead(trial: Trial, name: str) -> dict[str, Any]:
    """Wait until the delivery to a hook, which always fails, is dead; one that waits for an attempt is cancelled.

    Raises:
        CheckFailed: it did not end, or the author of its organization does not see it.
    """
    seen = await _until(trial, name, {"dead", "retrying"})
    while seen["status"] == "retrying":
        # In vain when its next attempt has begun: then that one ends first.
        await trial.request("POST", f"{LIST}/{seen['id']}/cancel", who=trial.author)
        seen = await _until(trial, name, {"dead", "retrying"})
    return seen


async def retried_without_its_origin(trial: Trial, dead: dict[str, Any], name: str, what: str) -> None:
    """Have a dead delivery retried whose node or action was removed.

    Raises:
        CheckFailed: it was sent, or it neither ended nor waits because the host does not know what was removed.
    """
    sent = len(trial.arrivals(name))
    path = f"{LIST}/{dead['id']}"
    trial.answers(
        await trial.request("POST", f"{path}/retry", who=trial.author),
        200,
        "the author could not retry a dead delivery",
    )
    await _until(trial, name, {"dead", "delivered", UNKNOWN})
    await trial.request(
        "POST", f"{path}/cancel", who=trial.author
    )  # otherwise it is asked for until it is dead
    ended = await _until(trial, name, {"dead", "delivered"})
    trial.equal(len(trial.arrivals(name)), sent, f"a delivery was sent again after its {what} was removed")
    trial.equal(ended["status"], "dead", f"the delivery of a removed {what} was not ended")


async def _until(trial: Trial, name: str, states: set[str]) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def has_ended() -> bool:
        answer = await trial.request("GET", LIST, who=trial.author)
        trial.answers(answer, 200, "the organization's deliveries could not be listed")
        found = [each for each in answer.json()["data"] if each["url"].endswith(f"/{trial.token}/{name}")]
        trial.expect(found, f"the delivery {name!r} is not in the list of its organization")
        seen.update(found[0])
        is_unknown = (seen.get("lastError") or "").startswith(UNKNOWN) and seen["status"] != "dead"
        return (UNKNOWN if is_unknown else seen["status"]) in states

    async def ended() -> None:
        while not await has_ended():  # noqa: ASYNC110  nothing tells of an outcome but the list
            await asyncio.sleep(POLL_SECONDS)

    try:
        await trial.session.patience.wait(ended(), "effect")
    except Late:
        # The last look was given up under way, and a request may take longer than an effect.
        trial.expect(
            await has_ended(),
            f"the delivery {name!r} did not end",
            expected=" or ".join(sorted(states)),
            actual=seen,
        )
    return seen
