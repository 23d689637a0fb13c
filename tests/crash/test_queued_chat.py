"""Queued chat messages in bursts, while workers are killed, a token is revoked, and one channel is archived."""

from __future__ import annotations

import json
import signal
from collections import defaultdict
from functools import partial
from typing import Any, Final

import pytest

from flowactions_conformance.chat_provider import sample_workspace
from flowactions_conformance.chat_provider.state import Channel, Workspace
from flowactions_hookspecs import Node
from flowactions_plugin.operations.changes import change_one
from flowactions_plugin.operators.scope import Scope
from tests.chatting import ChatHost, chat_host
from tests.crash.workers import Field
from tests.queueing import SOMEBODY
from tests.support import a_walk, services_of
from tests.waiting import until

QUEUED: Final = {
    "FLOWACTIONS_CHAT_DELIVERY": "queued",
    "FLOWACTIONS_DELIVERY": "continuous",
    "FLOWACTIONS_HOST_WORKER": "off",
    "FLOWACTIONS_ENCRYPTION_KEYS": "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE=",
}
BUSY: Final = "C00ORDERS"


def workspace_of(channels: int) -> Workspace:
    """Make a workspace that limits, with so many more channels."""
    made = sample_workspace(limited=True)
    made.channels += [Channel(id=f"C0000{number:04}", name=f"c{number}") for number in range(channels)]
    return made


async def queue(run: ChatHost, channel: str, number: int) -> None:
    result = await run.message(chatChannelId=channel, chatMessageText=f"{channel} {number}")
    assert result.status == "queued"


async def delivered(field: Field) -> int:
    return (await field.states())["delivered"]


@pytest.mark.parametrize(
    ("count", "channels", "kills"),
    [
        pytest.param(8, 3, 2, id="some", marks=pytest.mark.ci),
        pytest.param(300, 30, 5, id="many", marks=pytest.mark.long),
    ],
)
async def test_a_burst_arrives_in_order_whatever_happens(
    field: Field, count: int, channels: int, kills: int
) -> None:
    """Every message arrives, in the order of its channel, without a person; what waits for one channel delays no other."""
    workspace = workspace_of(channels)
    async with chat_host(field.url, [workspace], **QUEUED) as run:  # type: ignore[arg-type]
        field.settings |= run.host.settings
        await run.connect()
        archived = workspace.channels[-1]
        archived.is_archived = True
        for number in range(count):
            await queue(run, BUSY, number)
            await queue(run, workspace.channels[-1 - number % channels].id, number)
        hooks = [Node(id="w", type="webhook", config={"webhookUrl": field.receiver.url, "webhookBody": "{}"})]
        for _ in range(20):
            await run.actions.reach(a_walk(), hooks[0])
        worker = await field.start()
        await until(lambda: len(field.receiver.requests) == 20)
        assert not await field.drained()  # webhooks do not wait for messages

        for kill in range(kills):
            before = await delivered(field)
            await until(partial(moved, field, before))
            worker.send_signal(signal.SIGKILL)
            await worker.wait()
            await field.end_leases(worker)
            worker = await field.start()
            if kill == kills // 2:
                (token,) = run.provider.state.tokens_of(workspace)
                token.dead = "token_revoked"
                await until(lambda: waits(field))
                await run.connect()
        await until(field.drained)
        lost = await field.query(
            "SELECT id, url, error_class FROM flowactions_outbox WHERE status <> 'delivered'"
        )
        assert {(row.url, row.error_class) for row in lost} == {
            (f"chat://{workspace.id}/{archived.id}", "chat_refused")
        }
        check_order(run, kills)

        archived.is_archived = False
        database = services_of(run.host)._database
        for row in lost:
            assert await change_one(database, "retry", row.id, Scope("acme"), SOMEBODY)
        await until(field.drained)
        await until(lambda: all_delivered(field))
        texts = {message.text for message in run.provider.messages}
        assert texts == {json.loads(bytes(body))["text"] for (body,) in await bodies(field)}
        check_order(run, kills)


async def moved(field: Field, before: int) -> bool:
    return await delivered(field) > before or await field.drained()


async def waits(field: Field) -> bool:
    """Tell whether messages wait for a reconnect, or none is left that could."""
    rows = await field.query(
        "SELECT 1 FROM flowactions_outbox WHERE error_class = 'waits' AND status = 'pending'"
    )
    return bool(rows) or await field.drained()


async def all_delivered(field: Field) -> bool:
    return set(await field.states()) == {"delivered"}


async def bodies(field: Field) -> list[Any]:
    return await field.query("SELECT body FROM flowactions_outbox WHERE url LIKE 'chat:%'")


def check_order(run: ChatHost, kills: int) -> None:
    """Check that each channel has its messages in order of first arrival, and that only kills repeat some."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for message in run.provider.messages:
        channel, number = message.text.split()
        if int(number) not in numbers[channel]:
            numbers[channel].append(int(number))
    assert all(each == sorted(each) for each in numbers.values()), numbers
    first = sum(map(len, numbers.values()))
    assert len(run.provider.messages) - first <= kills * (len(numbers) + 1)
