"""Deliveries as the list of their organization has them, and how one is sent again at once."""

from __future__ import annotations

import asyncio
from typing import Any

from flowactions_conformance.kit.outcomes import CheckFailed
from flowactions_conformance.kit.session import Host
from flowactions_conformance.kit.trial import POLL_SECONDS, Trial


async def until_ended(
    trial: Trial, name: str, *, failing: bool = False, host: Host | None = None
) -> dict[str, Any]:
    """Waits until the delivery to `hook` of that name is delivered or dead, as the list of its organization has it.

    Args:
        trial: of the check.
        name: of the hook.
        failing: whether one that has failed and is tried again later will do, too.
        host: whose list.
    """
    patience = trial.session.patience
    seen: dict[str, Any] | None = None
    ended = {"delivered", "dead", "retrying"} if failing else {"delivered", "dead"}
    try:
        async with asyncio.timeout(patience.seconds):
            while seen is None or seen["status"] not in ended:
                # An outcome is written after the answer: nothing tells of it but the list.
                await asyncio.sleep(0 if seen is None else POLL_SECONDS)
                answer = await trial.request("GET", "/v1/webhooks/outbox", who=trial.author, host=host)
                trial.equal(answer.status_code, 200, "the organization's deliveries could not be listed")
                found = [
                    each for each in answer.json()["data"] if each["url"].endswith(f"/{trial.token}/{name}")
                ]
                trial.expect(found, f"the delivery {name!r} is not in the list of its organization")
                seen = found[0]
    except TimeoutError:
        patience.lost()
        raise CheckFailed(
            f"the delivery {name!r} did not end",
            expected=sorted(ended),
            actual=seen,
            causes=trial.check.causes,
        ) from None
    return seen


async def send_again(trial: Trial, name: str, host: Host | None = None) -> None:
    """Has the delivery to `hook` of that name, whose first attempt fails, sent again now."""
    failed = await until_ended(trial, name, failing=True, host=host)
    steps = ["cancel", "retry"] if failed["status"] == "retrying" else ["retry"]
    for step in steps:
        path = f"/v1/webhooks/outbox/{failed['id']}/{step}"
        answer = await trial.request("POST", path, who=trial.author, host=host)
        trial.equal(answer.status_code, 200, f"the author could not {step} a delivery: {answer.text[:300]}")
