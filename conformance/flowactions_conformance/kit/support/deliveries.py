"""Deliveries as the list of their organization has them, and how one is ended and sent again."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from flowactions_conformance.kit.hosts.limits import Late
from flowactions_conformance.kit.trial import POLL_SECONDS, Trial

LIST: Final = "/v1/webhooks/outbox"


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


async def _until(trial: Trial, name: str, states: set[str]) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def has_ended() -> bool:
        answer = await trial.request("GET", LIST, who=trial.author)
        trial.answers(answer, 200, "the organization's deliveries could not be listed")
        found = [each for each in answer.json()["data"] if each["url"].endswith(f"/{trial.token}/{name}")]
        trial.expect(found, f"the delivery {name!r} is not in the list of its organization")
        seen.update(found[0])
        return seen["status"] in states

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
