"""Incidents of the runbook, each made with the real thing: processes, databases, receivers, certificates, a chat provider."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from sqlalchemy.engine import make_url

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress.signature import sign
from tests.chatting import ChatHost, chat_host
from tests.crash.page_host import Pages, pages_of
from tests.crash.workers import HOST, Field
from tests.loopback import listening
from tests.outages import Outage
from tests.proxying import pumped
from tests.recorder import OK, status
from tests.support import SmallHost, a_walk
from tests.waiting import until

KEY = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
OTHER_KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
SOON = "3 1.5 0.3"


class Stage:
    """Where an incident is staged.

    Args:
        field: a queue, a receiver, and workers.
        directory: of this test.
        running: ends what an incident starts.

    Attributes:
        row: the id of the delivery that the runbook looks at.
        url: of the receiver that it sends a test to.
        settings: of commands that the runbook runs on another machine than the others; by the number of the command.
        later: numbers of the commands of the runbook that are not run at this stage.
        moves: whether deliveries go on, so that what is shown may be otherwise for a moment.
    """

    def __init__(self, field: Field, directory: Path, running: AsyncExitStack) -> None:
        self.field = field
        self.directory = directory
        self.running = running
        self.row = ""
        self.url = ""
        self.settings: dict[int, dict[str, str]] = {}
        self.later: set[int] = set()
        self.moves = False
        self._pages: Pages | None = None

    async def pages(self) -> Pages:
        """Give a reader of the pages of a host, which is started when they are first asked for."""
        if self._pages is None:
            self._pages = await self.running.enter_async_context(pages_of(self.field.settings))
        return self._pages

    async def ids(self, state: str, most: int = 1) -> list[str]:
        """Give the ids of the deliveries in a state, the oldest first, once there are so many."""
        query = f"SELECT id FROM flowactions_outbox WHERE status = '{state}' ORDER BY id"  # noqa: S608
        found = await self.field.query(query)
        return [row.id for row in found] if len(found) >= most else []

    async def send(self, state: str, most: int = 1, *, delivered: int = 0, **environment: str) -> None:
        """Have a worker send until so many deliveries are in a state, then stop it; look at the first of them.

        `delivered`: so many others have arrived by then, too.

        The backoff of those that are tried again lasts longer than all commands take.
        """
        await self.field.start(**environment)
        await until(lambda: self.ids(state, most))
        if delivered:
            await until(lambda: self.ids("delivered", delivered))
        await self.field.stop()
        later = (
            "UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at + 100000 WHERE status = 'retrying'"
        )
        await self.field.run(later)
        (self.row, *_) = await self.ids(state)


async def receiver_down(stage: Stage) -> None:
    await stage.field.enqueue(24, webhookUrl="http://127.0.0.1:9/hook", webhookRetryOnFailure=True)
    await stage.field.enqueue(2)
    await stage.send("retrying", 24)


def a_certificate(directory: Path, name: str, *, expired: bool) -> tuple[str, ssl.SSLContext]:
    """Make a certificate for a name that vouches for itself, in PEM, and the TLS context of its server."""
    key = ec.generate_private_key(ec.SECP256R1())
    owner = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=-1 if expired else 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(owner)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - dt.timedelta(days=2))
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = made.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = directory / f"{name}.pem"
    path.write_bytes(private + pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(path)
    return pem.decode(), context


async def certificate_refused(stage: Stage) -> None:
    """One certificate has expired, another is for another name; each is trusted otherwise."""
    authorities = ""
    for flow_id, name, expired in (("flow-2", "other.example", False), ("flow-1", "localhost", True)):
        pem, context = a_certificate(stage.directory, name, expired=expired)
        authorities += pem
        port = await stage.running.enter_async_context(listening(stage.field.receiver.serve, tls=context))
        stage.url = f"https://localhost:{port}/hook"
        await stage.field.enqueue(3, flow_id=flow_id, webhookUrl=stage.url, webhookRetryOnFailure=True)
    path = stage.directory / "authorities.pem"
    path.write_text(authorities)
    stage.field.settings["FLOWACTIONS_EGRESS_CA_FILE"] = str(path)
    await stage.send("retrying", 6)
    stage.row = (await stage.ids("retrying"))[-1]
    assert stage.field.receiver.requests == []


async def name_unresolved(stage: Stage) -> None:
    stage.url = "http://hooks.customer.invalid/hook"
    await stage.field.enqueue(3, webhookUrl=stage.url, webhookRetryOnFailure=True)
    await stage.send("retrying", 3)


async def gone(stage: Stage) -> None:
    stage.field.settings["FLOWACTIONS_RETRY_SCHEDULE"] = "long"
    stage.field.receiver.answer = lambda number: status(410, body=b"this endpoint was removed")
    await stage.field.enqueue(3, webhookRetryOnFailure=True)
    await stage.send("dead", 3)
    assert len(stage.field.receiver.requests) == 3
    assert "answers 410 Gone" in stage.field.logs()


async def bad_flow(stage: Stage) -> None:
    """One flow has a wrong path; another one's deliveries to the same destination arrive."""
    receiver = stage.field.receiver
    receiver.answer = lambda number: (
        status(404, body=b"no such hook") if "/hok" in receiver.requests[-1].line else OK
    )
    for _ in range(4):
        await stage.field.enqueue(6)
        await stage.field.enqueue(1, flow_id="flow-2", webhookUrl=receiver.url.replace("/hook", "/hok"))
    await stage.send("dead", 4, delivered=24)


async def slow_customer(stage: Stage) -> None:
    """It answers after two seconds, and its deliveries are due since minutes."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b'\r\n\r\n{"user": ')
            await reader.readuntil(b"}")
            await asyncio.sleep(2)
            writer.write(OK)

    field = stage.field
    field.settings["FLOWACTIONS_DESTINATION_LIMIT"] = "2"
    port = await stage.running.enter_async_context(listening(slow))
    await field.enqueue(100, webhookUrl=f"http://127.0.0.1:{port}/hook")
    await field.run("UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at - 400000")
    await field.start()
    await until(lambda: field.query("SELECT 1 FROM flowactions_statistics WHERE destination <> ''"))
    stage.row = (await stage.ids("pending"))[-1]
    stage.moves = True


async def database_away(stage: Stage) -> None:
    """What leads to its server refuses connections from one moment on."""
    real = make_url(stage.field.url)
    folder = real.query.get("host")

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if folder:
            inner, outer = await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{real.port or 5432}")
        else:
            inner, outer = await asyncio.open_connection(real.host, real.port or 5432)
        try:
            await asyncio.gather(pumped(reader, outer), pumped(inner, writer))
        finally:
            outer.close()

    async with listening(lead) as port:
        url = real.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)
        stage.field.settings["FLOWACTIONS_DATABASE_URL"] = url
        pages = await stage.pages()
        before = (await pages.open()).text
        assert "Due now" in before, before


async def no_writes(stage: Stage) -> None:
    await stage.pages()
    await stage.running.enter_async_context(Outage(stage.field.url, "read-only server").lasting())


async def no_worker(stage: Stage) -> None:
    """A minute after the last worker was frozen."""
    await stage.field.enqueue(1)
    worker = await stage.field.start()
    await until(lambda: stage.ids("delivered"))
    os.kill(worker.pid, signal.SIGSTOP)
    await stage.field.enqueue(3)
    await aged(stage.field, 70)
    await stage.field.run("UPDATE flowactions_outbox SET next_attempt_at = next_attempt_at - 70000")


async def aged(field: Field, seconds: int, condition: str = "1 = 1") -> None:
    """Have workers be seen earlier, and have begun as much earlier."""
    await field.run(
        f"UPDATE flowactions_workers SET last_seen_at = last_seen_at - {seconds * 1000},"  # noqa: S608
        f" last_claim_at = last_claim_at - {seconds * 1000} WHERE {condition}"
    )


async def wrong_clock(stage: Stage) -> None:
    stage.field.receiver.answer = lambda number: status(400, body=b'{"error":"Message timestamp too new"}')
    await stage.field.enqueue(3)
    await stage.field.start(FLOWACTIONS_TEST_AHEAD="600")
    await until(lambda: stage.ids("dead", 3))
    (stage.row, *_) = await stage.ids("dead")
    stage.settings[1] = {"FLOWACTIONS_TEST_AHEAD": "600", "host": HOST}


async def crashing(stage: Stage) -> None:
    """A minute ago three workers were killed, and one was started instead."""
    field = stage.field
    await field.enqueue(30)  # ten for each, which is the limit of a destination
    for _ in range(3):
        assert await (await field.start(kill="claimed:1")).wait() == -signal.SIGKILL
    await aged(field, 60)
    await field.start()
    await until(
        lambda: field.query("SELECT 1 FROM flowactions_workers WHERE last_seen_at > started_at - 50000")
    )


async def frozen(stage: Stage) -> None:
    """One of two workers, for a minute."""
    worker = await two_workers(stage.field)
    os.kill(worker.pid, signal.SIGSTOP)
    await stage.field.run("UPDATE flowactions_workers SET started_at = started_at - 120000")
    await aged(stage.field, 60, f"pid = {worker.pid}")


async def two_workers(field: Field) -> Any:
    """Start two workers; give the first, once both are in the list."""
    await field.enqueue(1)
    first, _ = await field.start(), await field.start()
    await until(lambda: count_of_workers(field, 2))
    return first


async def count_of_workers(field: Field, least: int) -> bool:
    return len(await field.query("SELECT 1 FROM flowactions_workers")) >= least


async def ending_workers(stage: Stage) -> None:
    """A delivery that three workers ended with, and one more while it was sent alone."""
    field = stage.field
    await field.enqueue(1)
    await field.run("UPDATE flowactions_outbox SET takeovers = 3")
    (stage.row,) = await stage.ids("pending")
    await until_killed(stage)
    stage.later = {2}
    # Its lease expires.
    await until(
        lambda: field.query(f"SELECT 1 FROM flowactions_outbox WHERE claimed_until < {time.time() * 1000}")  # noqa: S608
    )


async def until_killed(stage: Stage) -> None:
    """Start a worker that its receiver kills."""

    def answer(number: int) -> bytes:
        os.kill(worker.pid, signal.SIGKILL)
        return OK

    stage.field.receiver.answer = answer
    worker = await stage.field.start(FLOWACTIONS_TEST_TIMING=SOON)
    assert await worker.wait() == -signal.SIGKILL, stage.field.logs()


async def connected(stage: Stage) -> ChatHost:
    """Run a chat provider, and a host that is connected to a workspace of it."""
    run = await stage.running.enter_async_context(
        chat_host(stage.field.url, FLOWACTIONS_ENCRYPTION_KEYS=KEY, FLOWACTIONS_HOST_WORKER="off")
    )
    await run.connect()
    stage.field.settings = dict(run.host.settings)
    return run


async def token_revoked(stage: Stage) -> None:
    run = await connected(stage)
    for token in run.provider.state.tokens_of(run.provider.state.workspaces[0]):
        token.dead = "token_revoked"
    assert (await run.message()).status == "failed"


async def channel_archived(stage: Stage) -> None:
    run = await connected(stage)
    assert (await run.message()).status == "sent"
    for channel in run.provider.state.workspaces[0].channels:
        channel.is_archived = channel.is_archived or channel.id == "C00ORDERS"
    assert (await run.message()).status == "failed"


async def key_lost(stage: Stage) -> None:
    """A process has another key than the one that the token was sealed with, and is to send a message."""
    await connected(stage)
    stage.field.settings["FLOWACTIONS_ENCRYPTION_KEYS"] = OTHER_KEY
    actions = FlowActions.load(SmallHost(stage.field.settings))
    async with actions.lifespan():
        data = {"chatChannelId": "C00ORDERS", "chatMessageText": "hi"}
        result = await actions.reach(a_walk(), Node(id="n", type="chat_message", config=data))
        assert result.status == "failed"


async def secret_wrong(stage: Stage) -> None:
    """The receiver verifies with another secret than the one that the worker signs with."""
    secret = "whsec_" + KEY

    def answer(number: int) -> bytes:
        request = stage.field.receiver.requests[-1]
        made = sign(secret, int(request.header("x-service-webhook-timestamp")), request.body)
        is_right = request.header("x-service-webhook-signature") == made
        return OK if is_right else status(401, body=b"signature does not match")

    stage.field.receiver.answer = answer
    await stage.field.enqueue(3, webhookRetryOnFailure=True)
    await stage.send("retrying", 3)
    stage.url = stage.field.receiver.url
    stage.settings[1] = {"WEBHOOK_SECRET": secret}


async def waits_here(stage: Stage) -> None:
    """The egress proxy does not answer."""
    stage.field.settings["FLOWACTIONS_EGRESS_PROXY"] = "http://127.0.0.1:9"
    await stage.field.enqueue(3, webhookRetryOnFailure=True)
    await stage.field.start()
    waiting = "SELECT 1 FROM flowactions_outbox WHERE waiting_since IS NOT NULL"
    await until(lambda: stage.field.query(waiting))
    (stage.row, *_) = await stage.ids("pending")
    stage.moves = True


async def paused_by_itself(stage: Stage) -> None:
    """After twenty failures; one delivery was sent since, to see whether it works."""
    stage.field.settings["FLOWACTIONS_AUTO_PAUSE"] = "20,1s"
    stage.field.receiver.answer = lambda number: status(503)
    await stage.field.enqueue(24, webhookRetryOnFailure=True)
    await stage.field.start()
    await until(lambda: stage.field.query("SELECT 1 FROM flowactions_pauses WHERE paused_role = 'automatic'"))
    held = "SELECT id FROM flowactions_outbox WHERE status = 'retrying'"
    await until(lambda: stage.field.query(held))
    stage.row = (await stage.field.query(held))[0].id
    stage.moves = True


async def events_refused(stage: Stage) -> None:
    """The auth provider signs with another secret than the one that is set."""
    stage.field.settings["AUTH_WEBHOOK_SIGNING_SECRET"] = "whsec_" + KEY
    pages = await stage.pages()
    for number in range(3):
        headers = {
            "svix-id": f"msg_{number}",
            "svix-timestamp": str(int(time.time())),
            "svix-signature": "v1,AAAA",
        }
        assert await pages.post("/webhooks/auth", headers) == 401


async def migrations_behind(_stage: Stage) -> None:
    """The database has no tables yet."""


async def disk_full(stage: Stage) -> None:
    """SQLite may not write one more page, in each process."""
    flag = stage.directory / "full"
    stage.field.settings["FLOWACTIONS_TEST_FULL"] = str(flag)
    await stage.field.enqueue(1)
    await stage.pages()
    flag.touch()
    stage.settings[0] = {"host": HOST}


@asynccontextmanager
async def staged(field: Field, directory: Path) -> AsyncIterator[Stage]:
    """Give a stage; everything that is started on it ends with the block, workers first."""
    async with AsyncExitStack() as running:
        running.push_async_callback(field.stop)
        try:
            yield Stage(field, directory, running)
        finally:
            await field.stop()
