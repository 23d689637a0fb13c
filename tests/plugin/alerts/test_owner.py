"""Whose failures an alert is about: the origin that all failures in a row have, counted by any number of workers."""

from __future__ import annotations

import asyncio
import os
import random
import smtplib
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date
from email.message import EmailMessage
from email.parser import BytesParser
from email.policy import default
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from flowactions_hookspecs import (
    DeliveryAlert,
    FlowActions,
    FlowNodeOrigin,
    HostOrigin,
    Node,
    Origin,
    UnsignedTestOrigin,
)
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.operations.automatic import AutomaticPauses
from flowactions_plugin.queue.claimed import Attempted, Completion
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.storage.schema import destinations
from flowactions_plugin.watch.statistics import Tally
from flowactions_plugin.watch.statistics_store import add_counts, origin_of
from tests.docs.fences import ROOT, blocks_of
from tests.loopback import listening
from tests.pausing import RULE
from tests.queueing import Queue, claimed
from tests.recorder import OK, Recorder, recorder, status
from tests.support import SmallHost, a_walk, development, hurry
from tests.waiting import until

A, B = (FlowNodeOrigin(organization_id="acme", agent_id="a", flow_id="Zoë", node_id=node) for node in "ab")
OWN = HostOrigin(organization_id="acme", name="orders", id="7")
DRAFT = UnsignedTestOrigin(organization_id="acme", agent_id="a", flow_id="Zoë", node_id="a")


def ended(origin: Origin | None) -> Completion:
    """An attempt that failed; ``None``: one that has arrived."""
    arrived = origin is None
    change = Transition("delivered" if arrived else "retrying")
    return Attempted(claimed(origin=origin or A), Outcome(0, 5, status_code=200 if arrived else 500), change)


async def counted(queue: Queue, *origins: Origin | None) -> Sequence[DeliveryAlert]:
    """Count ends of attempts as a worker does that writes them together."""
    tally = Tally()
    tally.record(map(ended, origins))
    return await add_counts(queue.database, tally.pop(), queue.database.clock())


class TestOrigin:
    async def test_all_failures_in_a_row_have_it(self, queue: Queue) -> None:
        """Over any batches: the origin of the row of failures, if it has one; a success begins anew, a draft's test says nothing."""
        chance = random.Random(20261128)  # noqa: S311  to be drawn again
        for _ in range(12):
            await queue.run("DELETE FROM flowactions_destinations")
            row: list[Origin] = []
            for _ in range(12):
                batch = chance.choices([None, A, A, A, B, OWN, DRAFT], k=chance.randint(1, 4))
                await counted(queue, *batch)
                for each in batch:
                    row = [] if each is None else [*row, each]
                if row:
                    own = set(row) - {DRAFT}
                    assert await stored(queue) == (own.pop() if len(own) == 1 else None), (row, batch)

    async def test_what_could_not_be_written_is_counted_on(self, queue: Queue) -> None:
        """With the origins of what was counted since."""
        for later, expected in (([A], A), ([B], None), ([None, B], B)):
            await queue.run("DELETE FROM flowactions_destinations")
            tally = Tally()
            tally.record([ended(A)])
            taken = tally.pop()
            tally.record(map(ended, later))
            tally.restore(taken)
            await add_counts(queue.database, tally.pop(), queue.database.clock())
            assert await stored(queue) == expected

    @pytest.mark.parametrize(("other", "origin"), [(A, A), (OWN, None)])
    async def test_the_host_is_told_it(self, queue: Queue, other: Origin, origin: Origin | None) -> None:
        """When the destination fails, and when it has recovered; of one that fails again by then, nothing is said."""
        assert await counted(queue, *[A] * 10) == []
        (failing,) = await counted(queue, *[other] * 10)
        assert (failing.kind, failing.organization_id, failing.origin) == ("failing", "acme", origin)
        (recovered,) = await counted(queue, None)
        assert (recovered.kind, recovered.organization_id, recovered.origin) == ("recovered", "acme", origin)
        await counted(queue, *[A] * 20)
        (again,) = await counted(queue, None, B)
        assert (again.kind, again.origin) == ("recovered", None)

    async def test_automatic_pauses_have_it(self, queue: Queue) -> None:
        """When a destination is paused, and when it is resumed."""
        told: list[DeliveryAlert] = []
        automatic = AutomaticPauses(queue.database, RULE, told.append)
        await counted(queue, A, A, A)
        await queue.run("UPDATE flowactions_destinations SET failing_since = failing_since - 100000")
        await automatic.look()
        await counted(queue, None)
        await automatic.look()
        assert [(each.kind, each.origin) for each in told] == [("paused", A), ("resumed", A)]

    @pytest.mark.parametrize("text", ['{"kind":"of a later release"}', "{", "[]"])
    def test_one_that_cannot_be_read_is_none(self, text: str) -> None:
        """A later release may know more of them."""
        assert origin_of(text) is None


async def stored(queue: Queue) -> Origin | None:
    (row,) = await queue.database.rows(select(destinations.c.failing_origin))
    return origin_of(row.failing_origin)


class MailServer:
    """A mail server: what it was sent, or what it answers in place of taking it."""

    def __init__(self) -> None:
        self.port = 0
        self.mails: list[EmailMessage] = []
        self.refuses = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Speak SMTP (RFC 5321) with one client."""
        writer.write(b"220 mail.test\r\n")
        while (verb := (await reader.readline())[:4].upper()) != b"QUIT":
            if verb == b"DATA" and not self.refuses:
                writer.write(b"354 go on\r\n")
                sent = await reader.readuntil(b"\r\n.\r\n")
                self.mails.append(BytesParser(policy=default).parsebytes(sent))
            writer.write(b"554 no\r\n" if verb == b"DATA" and self.refuses else b"250 ok\r\n")
        writer.write(b"221 bye\r\n")
        writer.close()


@asynccontextmanager
async def mail_server() -> AsyncIterator[MailServer]:
    """Run a mail server on a free loopback port."""
    server = MailServer()
    async with listening(server.serve) as server.port:
        yield server


def the_recipe() -> Any:
    """Give the class that the page shows, with the names that a host's module has."""
    (block,) = [each for each in blocks_of(ROOT / "docs/how-to/alerts.md") if each.language == "python"]
    assert len(block.text.splitlines()) <= 18
    names: dict[str, Any] = {
        "MyHost": SmallHost,
        "owner_of": lambda node: f"{node.node_id}@example.com",
        **{each.__name__: each for each in (asyncio, date, os, smtplib, sqlite3, EmailMessage, FlowNodeOrigin)},
    }
    exec(block.text, names)  # noqa: S102  the project's own page
    return names["MailingHost"]


async def test_the_owner_gets_a_mail_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the host of the page: for each node that fails; again if the mail server refuses; no mail if several nodes fail."""
    monkeypatch.chdir(tmp_path)
    hurry(monkeypatch, "statistics")
    kinds: list[str] = []

    class Noting(the_recipe()):  # type: ignore[misc]  # its class is the page's
        async def delivery_alert(self, alert: DeliveryAlert) -> None:
            try:
                await super().delivery_alert(alert)
            finally:
                kinds.append(alert.kind)

    async with mail_server() as mails, recorder() as receiver, recorder() as other:
        monkeypatch.setenv("SMTP_SERVER", f"127.0.0.1:{mails.port}")
        actions = FlowActions.load(
            Noting(development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_DELIVERY="continuous"))
        )

        async def send(to: Recorder, code: int, *nodes: str) -> None:
            """Send until the host is told of the destination."""
            told = len(kinds)
            to.answer = lambda _: OK if code == 200 else status(code)
            for node in nodes:
                config = {"webhookUrl": to.url, "webhookBody": "{}"}
                await actions.reach(a_walk(), Node(id=node, type="webhook", config=config))
            await until(lambda: len(kinds) > told)

        async with actions.lifespan():
            mails.refuses = True
            await send(receiver, 500, *["first"] * 20)
            assert "host.method_failed" in {getattr(each, "event", "") for each in caplog.records}
            mails.refuses = False
            for _ in range(2):
                await send(receiver, 200, "first")
                await send(receiver, 500, *["first"] * 20)
            await send(other, 500, *["first", "second"] * 10)
            await send(other, 200, "first")
            await send(other, 500, *["second"] * 20)
    assert kinds == ["failing", *["recovered", "failing"] * 2, "failing", "recovered", "failing"]
    assert [each["To"] for each in mails.mails] == ["first@example.com", "second@example.com"]
    assert mails.mails[0]["Subject"] == f"Your webhook to {receiver.url.removesuffix('/hook')} does not arrive"
    assert "20 attempts failed in a row: http_5xx." in mails.mails[0].get_content()
