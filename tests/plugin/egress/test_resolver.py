from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.egress.attempt import Aborted
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.egress.resolver import CachingResolver, Resolver, threads_for
from flowactions_plugin.egress.sender import Sender
from flowactions_plugin.egress.transport import OutboundTransport
from flowactions_plugin.queue import service
from tests.queueing import a_delivery
from tests.recorder import recorder
from tests.sending import Message
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import SAFETY_SECONDS, until


@contextmanager
def no_thread_starts() -> Iterator[None]:
    """Ask for stacks that no address space holds, so that the system starts no thread."""
    threading.stack_size(1 << 46)
    try:
        yield
    finally:
        threading.stack_size(0)


class TestResolver:
    @pytest.mark.parametrize(
        ("attempts", "seconds", "threads"),
        [(50, 10, 200), (100, 10, 400), (1, 60, 2), (1, 1, 31), (1000, 10, 1024), (50, 1, 1024)],
    )
    def test_an_attempt_has_a_thread_beside_those_that_hang(
        self, attempts: int, seconds: int, threads: int
    ) -> None:
        """A lookup that hangs outlasts several attempts."""
        assert threads_for(attempts, seconds) == threads

    async def test_a_lookup_that_hangs_delays_no_other(self) -> None:
        """Twenty hanging names leave room for the one that answers; each is asked for once."""
        hang, asked = threading.Event(), []

        def lookup(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            if host.startswith("hangs"):
                hang.wait(300)
            return ["8.8.8.8"]

        resolver = Resolver(64, lookup)
        hanging = [asyncio.create_task(resolver(f"hangs{number % 20}", 80)) for number in range(60)]
        await asyncio.sleep(0.05)
        try:
            assert await resolver("answers", 80) == ["8.8.8.8"]
            assert not any(task.done() for task in hanging)
            await until(lambda: len(asked) >= 21)  # each thread is there, but may not have begun
            assert sorted(asked) == sorted({*(f"hangs{number}" for number in range(20)), "answers"})
        finally:
            hang.set()
        assert await asyncio.gather(*hanging) == [["8.8.8.8"]] * 60

    async def test_lookups_for_one_name_are_coalesced(self) -> None:
        """One of two that wait is cancelled; the other has its answer."""
        go = threading.Event()

        def lookup(host: str, port: int) -> Sequence[str]:
            go.wait(300)
            return ["8.8.8.8"]

        resolver = Resolver(1, lookup)
        one, other = (asyncio.create_task(resolver("example.com", 80)) for _ in range(2))
        await asyncio.sleep(0.05)
        one.cancel()
        go.set()
        assert await other == ["8.8.8.8"]
        assert await resolver("example.com", 80) == ["8.8.8.8"]

    async def test_no_address_is_an_error_for_all_who_asked(self) -> None:
        """A failing lookup fails each of them, and is asked anew later."""

        def lookup(host: str, port: int) -> Sequence[str]:
            raise socket.gaierror("no such host")

        resolver = Resolver(1, lookup)
        for _ in range(2):
            answers = await asyncio.gather(*(resolver("x", 80) for _ in range(3)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [socket.gaierror] * 3

    async def test_names_are_looked_up_by_the_system(self) -> None:
        """Without another lookup, localhost is this machine."""
        assert "127.0.0.1" in await Resolver(1)("localhost", 80)

    async def test_threads_are_bounded_and_end(self) -> None:
        """However many names are asked for, there are so many threads at most; without a lookup there is none."""
        running, most = 0, 0
        lock = threading.Lock()

        def lookup(host: str, port: int) -> Sequence[str]:
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.002)
            with lock:
                running -= 1
            return [host]

        resolver = Resolver(4, lookup)
        answers = await asyncio.gather(*(resolver(f"host{number}", 80) for number in range(100)))
        assert answers == [[f"host{number}"] for number in range(100)]
        assert most <= 4
        await until(lambda: resolver._threads == 0)
        assert await resolver("again", 80) == ["again"]

    async def test_a_lookup_without_waiting_callers_is_dropped(self) -> None:
        """What has no thread yet when the last caller gives up is never looked up."""
        go, asked = threading.Event(), []

        def lookup(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            go.wait(300)
            return ["8.8.8.8"]

        resolver = Resolver(1, lookup)
        first = asyncio.create_task(resolver("first", 80))
        abandoned = [asyncio.create_task(resolver("abandoned", 80)) for _ in range(3)]
        wanted = [asyncio.create_task(resolver("wanted", 80)) for _ in range(2)]
        await until(lambda: asked == ["first"])
        for task in (*abandoned, wanted[0]):
            task.cancel()
        await asyncio.wait(abandoned)
        go.set()
        assert [await first, await wanted[1]] == [["8.8.8.8"]] * 2
        assert asked == ["first", "wanted"]
        assert resolver._asked == {}

    @pytest.mark.parametrize("begun", [0, 1], ids=["the first thread", "a further thread"])
    async def test_a_thread_that_cannot_start_takes_no_place(self, begun: int) -> None:
        """Lookups fail while the system starts no thread, as often as it likes; later, all places are there."""
        go = threading.Event()

        def lookup(host: str, port: int) -> Sequence[str]:
            if host.startswith("hangs"):
                go.wait(300)
            return [host]

        resolver = Resolver(4, lookup)
        hanging = [asyncio.create_task(resolver(f"hangs{number}", 80)) for number in range(begun)]
        await until(lambda: not resolver._queue)
        with no_thread_starts():
            for _ in range(6):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    await resolver("name", 80)
        try:
            hanging += [asyncio.create_task(resolver(f"hangs{number}", 80)) for number in range(begun, 3)]
            async with asyncio.timeout(300):
                assert await resolver("name", 80) == ["name"]
        finally:
            go.set()
        await asyncio.gather(*hanging)

    async def test_without_a_thread_an_enqueue_goes_on_and_a_delivery_is_no_attempt(self) -> None:
        """The name is looked up again at delivery, whoever dials; there, the lack is this process's."""
        guard = EgressGuard(development=True, resolve=CachingResolver(Resolver(1)))
        transport = OutboundTransport(guard, 1)
        named = OutboundTransport(guard, 1, "http://localhost:1")
        try:
            with no_thread_starts():
                for url in ("http://localhost:1/", "http://localhost:2/"):
                    assert await guard.look_up(url) == (await guard.validate(url), False)
                for made, check in (
                    (transport, guard.validate),
                    (transport, guard.resolve),
                    (named, guard.validate),
                ):
                    sender = Sender(made, check, lambda: 0.0, lambda: 0.0)
                    outcome = await sender.send(Message(url="http://localhost:1/"), None)
                    assert isinstance(outcome, Aborted)
                    assert (outcome.cause, outcome.reason[-7:]) == ("resources", "threads")
            for made in (transport, named):
                sender = Sender(made, guard.validate, lambda: 0.0, lambda: 0.0)
                outcome = await sender.send(Message(url="http://localhost:1/"), None)
                assert "refused" in str(outcome) or "cannot be reached" in str(outcome)
        finally:
            await transport.aclose()
            await named.aclose()

    @pytest.mark.ci
    async def test_a_lookup_that_hangs_does_not_delay_the_end_of_the_process(self) -> None:
        """Its thread ends with the process."""
        code = (
            "import asyncio, sys, threading\n"
            "from flowactions_plugin.egress.resolver import Resolver\n"
            "asked = threading.Event()\n"
            "async def main():\n"
            "    task = asyncio.create_task(Resolver(1, lambda *_: (asked.set(), sys.stdin.read()))('x', 80))\n"
            "    await asyncio.to_thread(asked.wait)\n"
            "asyncio.run(main())\n"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(300):
            assert await process.wait() == 0

    def test_it_serves_one_event_loop_after_another(self) -> None:
        """A host that is opened again in another loop resolves names as before, even while old lookups hang."""
        go = threading.Event()

        def lookup(host: str, port: int) -> Sequence[str]:
            if host == "hangs":
                go.wait(300)
            return [host]

        resolver = Resolver(2, lookup)

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await resolver("hangs", 80)

        async def ask() -> None:
            waiting = asyncio.create_task(resolver("hangs", 80))
            assert await resolver("answers", 80) == ["answers"]
            go.set()
            assert await waiting == ["hangs"]

        asyncio.run(give_up())
        asyncio.run(ask())


class TestCache:
    def counting(self, answers: dict[str, list[str]]) -> tuple[Callable[..., object], list[str]]:
        asked: list[str] = []

        async def resolve(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            if host not in answers:
                raise OSError("no such host")
            return answers[host]

        return resolve, asked

    async def test_results_and_failures_are_cached_for_a_while(self) -> None:
        """Within thirty seconds nothing is asked twice; after that, it is."""
        now = 0.0
        resolve, asked = self.counting({"there": ["8.8.8.8"]})
        cached = CachingResolver(resolve, timer=lambda: now)  # type: ignore[arg-type]
        for moment in (0.0, 29.9):
            now = moment
            assert await cached("there", 80) == ["8.8.8.8"]
            with pytest.raises(OSError, match="no such host"):
                await cached("missing", 80)
        assert asked == ["there", "missing"]
        now = 30.0
        await cached("there", 443)
        with pytest.raises(OSError, match="no such host"):
            await cached("missing", 80)
        assert asked == ["there", "missing"] * 2

    async def test_the_names_used_last_are_kept(self) -> None:
        """The cache is bounded, and what was used longest ago goes first."""
        names = [f"n{number}" for number in range(4097)]
        resolve, asked = self.counting({name: ["8.8.8.8"] for name in names})
        cached = CachingResolver(resolve)  # type: ignore[arg-type]
        for name in (*names[:-1], names[0], names[-1], names[0]):
            await cached(name, 80)
        assert asked == names
        await cached(names[1], 80)
        assert asked == [*names, names[1]]
        assert len(cached._cache) == 4096


@contextmanager
def lookups(monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], Sequence[str]]) -> Iterator[list[str]]:
    """Put other answers in the place of the operating system's; give the names that it is asked for."""
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in answer(host)]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", getaddrinfo)
        yield asked


class TestEnqueue:
    async def test_a_hundred_checks_at_once_are_one_lookup(self) -> None:
        """Of one name, whatever the ports, and for thirty seconds there is no other."""
        asked, waiting = [], threading.Event()

        def lookup(host: str, port: int) -> Sequence[str]:
            asked.append(host)
            waiting.wait(300)
            return ["8.8.8.8"]

        guard = EgressGuard(development=False, resolve=CachingResolver(Resolver(64, lookup)))
        urls = [f"https://example.com:{port}/{port}" for port in range(1, 101)]
        checks = [asyncio.create_task(guard.look_up(url)) for url in urls]
        await asyncio.sleep(0)  # each runs until it waits for the lookup
        waiting.set()
        await asyncio.gather(*checks)
        await asyncio.gather(*map(guard.look_up, urls))
        assert asked == ["example.com"]

    async def test_a_name_that_takes_too_long_is_let_through(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is not refused, because it may have an address."""
        monkeypatch.setattr("flowactions_plugin.egress.guard.RESOLVE_SECONDS", 0.01)

        async def never(_host: str, _port: int) -> Sequence[str]:
            await asyncio.Event().wait()
            return []

        guard = EgressGuard(development=False, resolve=never)
        async with asyncio.timeout(SAFETY_SECONDS):
            assert (await guard.look_up("https://slow.example/"))[1] is False

    @pytest.mark.ci
    async def test_lookups_that_hang_at_enqueue_take_no_thread_from_deliveries(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """More hanging names than enqueue has threads are let through, and a delivery resolves its name meanwhile."""
        monkeypatch.setattr("flowactions_plugin.egress.guard.RESOLVE_SECONDS", 0.1)
        monkeypatch.setattr(service, "ENQUEUE_RESOLVER_THREADS", 2)
        go = threading.Event()

        def answer(host: str) -> Sequence[str]:
            if host.startswith("hangs"):
                go.wait(300)
            return ["127.0.0.1"]

        settings = development(f"sqlite:///{tmp_path / 'f.db'}")
        host = SmallHost(settings)
        actions = FlowActions.load(host)
        before = threading.active_count()
        try:
            with lookups(monkeypatch, answer) as asked:
                async with recorder() as receiver, actions.lifespan():
                    port = receiver.url.rpartition(":")[2].partition("/")[0]
                    nodes = [
                        Node(id=f"n{number}", type="webhook", config={"webhookUrl": f"http://hangs{number}:1/"})
                        for number in range(5)
                    ]
                    results = await asyncio.gather(*(actions.reach(a_walk(), node) for node in nodes))
                    assert {result.status for result in results} == {"queued"}
                    made = services_of(host)
                    delivery = a_delivery(url=f"http://answers:{port}/")
                    async with made._database.write() as connection:
                        await made._outbox.write(delivery, connection)
                    await until(lambda: receiver.requests)
                    assert receiver.requests[0].header("host") == f"answers:{port}"
                    assert asked.count("answers") == 1
                    go.set()
            assert threading.active_count() - before < 40
        finally:
            go.set()

    async def test_delivery_does_not_use_the_cache_of_enqueue(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What enqueue has cached is not what delivery goes by: a name that changed is refused there."""
        addresses = ["8.8.8.8"]
        with lookups(monkeypatch, lambda host: addresses) as asked:
            host = SmallHost(
                {"FLOWACTIONS_DATABASE_URL": f"sqlite:///{tmp_path / 'f.db'}", "FLOWACTIONS_HOST_WORKER": "off"}
            )
            actions = FlowActions.load(host)
            made = services_of(host)
            node = Node(id="n", type="webhook", config={"webhookUrl": "http://rebinding.example/"})
            async with actions.lifespan():
                assert (await actions.reach(a_walk(), node)).status == "queued"
                addresses[:] = ["127.0.0.1"]
                assert (await actions.reach(a_walk(), node)).status == "queued"
                assert asked == ["rebinding.example"]
                task = asyncio.create_task(made._delivery.deliver())
                await until(lambda: len(host.finished) == 2)
                task.cancel()
                await asyncio.wait({task})
            assert {delivery.status for delivery in host.finished} == {"dead"}
            assert all("127.0.0.1" in (delivery.error or "") for delivery in host.finished)
            assert len(asked) > 1
