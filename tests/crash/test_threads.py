"""Hosts in threads of one process, each with an event loop of its own: nothing that is one's reaches another."""

from __future__ import annotations

import asyncio
import logging
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text

from flowactions_hookspecs import Delivery, FlowActions, Node
from flowactions_plugin.egress.attempt import RESPONSE_KEPT_BYTES
from flowactions_plugin.egress.signature import sign
from tests.authority import inner_authority
from tests.conftest import _a_postgresql_database
from tests.loopback import listening
from tests.loops import FASTEST, Loop
from tests.owning import engine_of
from tests.support import SmallHost, a_walk, development, services_of
from tests.telemetry import Recorded
from tests.waiting import until

STATUSES = (200, 500, 204, 404)
"""What the receivers of the hosts answer, by turns."""

BESIDE = 40
"""How many nodes a host reaches at the same time."""

ASKED = 60
"""How often a host reaches a node whose database does not answer: all share one processor."""


ROWS = """
    SELECT o.id, o.event_id, o.status, o.attempts, o.last_status_code AS code,
        coalesce(o.delivered_response, a.response) AS said
    FROM flowactions_outbox o LEFT JOIN flowactions_attempts a ON a.delivery_id = o.id
    WHERE o.organization_id = :organization AND o.finished_at IS NOT NULL
"""
COUNTED = """
    SELECT count(*), count(finished_at) FROM flowactions_outbox WHERE organization_id = :organization
"""


class Case(NamedTuple):
    """What the hosts of a run have in common.

    Attributes:
        urls: of their databases.
        rows: how many each enqueues.
        starting: all start at the same time.
        ended: all stop at the same time, when the rows of all have ended, and count them when all have stopped.
        tls: the authority's file, and the receivers' context.
    """

    urls: list[str]
    rows: int
    starting: threading.Barrier
    ended: threading.Barrier
    tls: tuple[Path, ssl.SSLContext] | None

    @property
    def is_shared(self) -> bool:
        """Whether all have one database, so that each delivers what others have enqueued."""
        return len(set(self.urls)) == 1


class ThreadedHost(SmallHost):
    """A host that notes when it is called in another thread than its own.

    Attributes:
        queued: run id → delivery id that `reach` returned.
        unsure: run id → number of calls of `reach` that failed after the row may have been stored.
        rows: all of its organization that have ended.
    """

    def __init__(self, number: int, case: Case) -> None:
        settings = development(
            case.urls[number], FLOWACTIONS_DELIVERY=("continuous", "scheduled")[number // 2 % 2]
        )
        if case.tls is not None:
            settings["FLOWACTIONS_EGRESS_CA_FILE"] = str(case.tls[0])
        super().__init__({**settings, "FLOWACTIONS_RETENTION_DAYS": str(30 + number)})
        self.thread = threading.get_ident()
        self.elsewhere = 0
        self.destination = ""
        self.queued: dict[str, str | None] = {}
        self.unsure: Counter[str] = Counter()
        self.rows: Sequence[Any] = ()
        self.recorded = Recorded()
        self.recorded.listen_to(self)

    async def signing_secret(self, origin: Any) -> str | None:
        self.elsewhere += threading.get_ident() != self.thread
        return f"secret of {origin.organization_id}"

    async def delivery_finished(self, delivery: Delivery) -> None:
        self.elsewhere += threading.get_ident() != self.thread
        await super().delivery_finished(delivery)


class Receiver:
    """The receiver of one host's webhooks: its answer names the organization and the event."""

    def __init__(self, organization: str, status: int) -> None:
        self.organization = organization
        self.status = status
        self.events: list[str] = []
        self.wrong: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer requests on one connection."""
        while True:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            body = await reader.readexactly(int(headers["content-length"]))
            timestamp = headers["x-service-webhook-timestamp"]
            signed = sign(f"secret of {self.organization}", int(timestamp), body)
            if body != f'"{self.organization}"'.encode() or headers["x-service-webhook-signature"] != signed:
                self.wrong.append(body)
            event = headers["x-service-webhook-id"]
            self.events.append(event)
            answer = "" if self.status == 204 else answer_of(self.organization, event)
            head = f"HTTP/1.1 {self.status} It\r\ncontent-length: {len(answer)}\r\n\r\n"
            writer.write((head + answer).encode())


def answer_of(organization: str, event: str) -> str:
    """Give the body of an answer; not all of it is kept."""
    return f"{organization} {event} " + "-" * 6_000


class Lines(logging.Handler):
    """Keeps which thread logged that a delivery to which destination is dead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") == "delivery.dead":
            destination = record.getMessage().partition(" to ")[2].partition(" ")[0]
            self.found.add((record.threadName or "", destination))


@contextmanager
def logged() -> Iterator[set[tuple[str, str]]]:
    """Take what the plugin logs of deliveries."""
    handler, logger = Lines(), logging.getLogger("flowactions")
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)


async def live(number: int, case: Case) -> ThreadedHost:
    """Run a host from its empty database to its end, and check all that is its own."""
    threading.current_thread().name = f"org-{number}"
    organization, status = f"org-{number}", STATUSES[number % len(STATUSES)]
    receiver = Receiver(organization, status)
    async with listening(receiver.serve, tls=None if case.tls is None else case.tls[1]) as port:
        config = {
            "webhookUrl": f"{'http' if case.tls is None else 'https'}://127.0.0.1:{port}/",
            "webhookBody": f'"{organization}"',
            "webhookRetryOnFailure": False,
        }
        await asyncio.to_thread(case.starting.wait)
        host = ThreadedHost(number, case)
        host.destination = str(config["webhookUrl"]).rstrip("/")
        actions = FlowActions.load(host)
        assert actions.route_handlers
        left = iter(range(case.rows))

        async def reach() -> None:
            for each in left:
                walk = a_walk(organization_id=organization, run_id=f"{organization}-{each}")
                node = Node(id="n", type="webhook", config=config)
                for _ in range(ASKED):
                    result = await actions.reach(walk, node)
                    if result.reason != "storage_unavailable":
                        break
                    if "may still have been queued" in (result.message or ""):
                        host.unsure[walk.run_id] += 1
                assert result.status == "queued"
                host.queued[walk.run_id] = result.delivery_id

        async with actions.lifespan():
            assert services_of(host)._settings.retention_days == 30 + number
            await asyncio.gather(*(reach() for _ in range(BESIDE)))
            await until(lambda: len(receiver.events) >= case.rows, 300)
            database = services_of(host)._database
            await until(lambda: all_ended(database, organization, case.rows))
            await asyncio.to_thread(case.ended.wait)
        await asyncio.to_thread(case.ended.wait)
        rows = host.rows = await ended_rows(case.urls[number], organization)
        assert_twice_only_where_unsure(host)
        assert receiver.wrong == []
        assert sorted(receiver.events) == sorted(row.event_id for row in rows)
        delivers = status < 300
        assert {(row.status, row.attempts, row.code) for row in rows} == {
            ("delivered" if delivers else "dead", 1, status)
        }
        said = {row.event_id: (row.said or b"").decode() for row in rows}
        assert said == {
            event: "" if status == 204 else answer_of(organization, event)[:RESPONSE_KEPT_BYTES]
            for event in said
        }
    return host


async def all_ended(database: Any, organization: str, count: int) -> bool:
    """Return whether the organization has at least so many rows, and all have ended.

    They are only counted: to read them again and again would keep the hosts of all threads from ending them.
    """
    async with database.read() as connection:
        counted = await connection.execute(text(COUNTED), {"organization": organization})
        rows, ended = counted.one()
        return bool(rows == ended >= count)


async def ended_rows(url: str, organization: str) -> Sequence[Any]:
    """Read the organization's rows that have ended."""
    engine = engine_of(url)
    try:
        async with engine.connect() as connection:
            return (await connection.execute(text(ROWS), {"organization": organization})).all()
    finally:
        await engine.dispose()


def assert_twice_only_where_unsure(host: ThreadedHost) -> None:
    """Each run has the row that `reach` returned. Each further row needs a call before it that lost the answer to its commit."""
    events = {row.id: row.event_id for row in host.rows}
    event_of = {run: events.pop(row) for run, row in host.queued.items()}
    others = Counter(events.values())
    assert others <= Counter({event_of[run]: times for run, times in host.unsure.items()})


def run(case: Case, threads: int, loop: Loop) -> None:
    """Run hosts, and check what only all of them together show."""

    def thread(number: int) -> ThreadedHost:
        try:
            with asyncio.Runner(loop_factory=loop) as runner:
                return runner.run(live(number, case))
        except BaseException:
            case.starting.abort()  # nobody waits for this one
            case.ended.abort()
            raise

    with logged() as found, ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(thread, number) for number in range(threads)]
    raised = [each.exception() for each in running]
    causes = [each for each in raised if each and not isinstance(each, threading.BrokenBarrierError)]
    if causes:
        raise causes[0]  # the others only waited for this one
    hosts = [each.result() for each in running]
    assert [host.elsewhere for host in hosts] == [0] * threads
    for name in ("flowactions.outbox.enqueued", "flowactions.delivery.ended"):
        values = [sum(each.value for each in host.recorded.points() if each.name == name) for host in hosts]
        own = [len(host.rows) if name.endswith("ended") else case.rows for host in hosts]
        if case.is_shared and name.endswith("ended"):
            assert sum(values) == sum(own)
        else:
            assert values == own
    finished = [each.organization_id for host in hosts for each in host.finished]
    assert len(finished) == sum(len(host.rows) for host in hosts)
    if not case.is_shared:
        dead = [host for number, host in enumerate(hosts) if STATUSES[number % len(STATUSES)] >= 300]
        assert found == {(f"org-{hosts.index(host)}", host.destination) for host in dead}
        assert [{each.organization_id for each in host.finished} for host in hosts] == [
            {f"org-{number}"} for number in range(threads)
        ]


def urls(kind: str, threads: int, folder: Path, server: Callable[[], str], stack: ExitStack) -> list[str]:
    """Make empty databases: one for each host, or one for all."""
    database, _, shared = kind.partition(" ")
    count = 1 if shared else threads
    if database == "sqlite":
        made = [f"sqlite:///{folder / f'{number}.db'}" for number in range(count)]
    else:
        made = [stack.enter_context(_a_postgresql_database(server())) for _ in range(count)]
    return made * (threads // count)


SOAK = pytest.mark.long


@pytest.mark.parametrize(
    ("kind", "threads", "loop", "secured", "rows"),
    [
        ("sqlite", 2, asyncio.new_event_loop, False, 60),
        ("postgresql shared", 2, FASTEST, True, 60),
        *(
            pytest.param(kind, threads, loop, secured, 12_500 // threads, marks=SOAK)
            for kind, threads, loop, secured in (
                ("sqlite", 2, FASTEST, True),
                ("sqlite", 8, asyncio.new_event_loop, False),
                ("sqlite shared", 2, asyncio.new_event_loop, True),
                ("sqlite shared", 8, FASTEST, False),
                ("postgresql", 2, asyncio.new_event_loop, False),
                ("postgresql", 8, FASTEST, True),
                ("postgresql shared", 2, FASTEST, False),
                ("postgresql shared", 8, asyncio.new_event_loop, True),
            )
        ),
    ],
)
def test_nothing_crosses_between_hosts_in_threads(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    threads: int,
    loop: Loop,
    secured: bool,
    rows: int,
) -> None:
    """Rows, answers, receivers, secrets, settings, callbacks, log lines and metrics are each host's own, from the start."""
    tls = None
    if secured:
        pem, context = inner_authority(tmp_path)
        (tmp_path / "authority.pem").write_text(pem)
        tls = tmp_path / "authority.pem", context
    with ExitStack() as stack:
        made = urls(kind, threads, tmp_path, lambda: request.getfixturevalue("postgres_server"), stack)
        run(Case(made, rows, threading.Barrier(threads), threading.Barrier(threads), tls), threads, loop)
