"""How long hosts are waited for, also on a slow machine."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowactions_conformance.kit import runner
from flowactions_conformance.kit.hosts import limits
from flowactions_conformance.kit.hosts.limits import (
    EXPIRED_BEFORE_SHORT,
    LIMITS,
    EffectTimeout,
    Late,
    Limits,
    Machine,
    Patience,
)
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, NothingKnown, Status
from flowactions_conformance.kit.preflight import SELF
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import Runner, run_checks
from flowactions_conformance.kit.session import Host, Mode, Session
from flowactions_conformance.kit.support.deliveries import LIST, until_dead
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.serving import serve
from tests.conformance.misbehaving import empty_app
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs/how-to/prove-your-host.md"


def slow(factor: float) -> Callable[[], Awaitable[float]]:
    async def measured() -> float:
        return factor

    return measured


class TestPatience:
    async def test_what_comes_is_given_and_what_fails_fails(self) -> None:
        """Whoever waits sees no difference."""
        patience = Patience(slow(5))

        async def fails() -> None:
            raise LookupError

        assert await patience.wait(asyncio.sleep(0, "came"), 60) == "came"
        with pytest.raises(LookupError):
            await patience.wait(fails(), 60)

    async def test_on_a_fast_machine_a_limit_ends_the_wait(self) -> None:
        """And what was waited for is cancelled."""
        waiting = asyncio.ensure_future(asyncio.sleep(600))
        with pytest.raises(Late):
            await Patience().wait(waiting, 0.01)
        assert waiting.cancelled()

    async def test_on_a_slow_machine_the_limit_grows(self) -> None:
        """What comes later than the limit has still come."""
        assert await Patience(slow(20)).wait(asyncio.sleep(0.5, "came"), 0.1) == "came"

    async def test_what_does_not_come_on_a_slow_machine_is_not_known(self) -> None:
        """The message says how slow it was."""
        with pytest.raises(NothingKnown, match="14 times slower than needed"):
            await Patience(slow(14)).wait(asyncio.sleep(600), 0.01)
        with pytest.raises(NothingKnown, match="100 times slower than needed"):
            await Patience(slow(100)).wait(asyncio.sleep(600), 0.01)

    async def test_a_machine_that_was_slow_before_the_limit_makes_it_longer(self) -> None:
        """It is measured several times until then, and the worst counts."""
        measured = iter([20.0])

        async def once() -> float:
            return next(measured, 1.0)

        assert await Patience(once).wait(asyncio.sleep(0.5, "came"), 0.1) == "came"

    async def test_limits_are_scaled(self) -> None:
        """All by one factor."""
        with pytest.raises(Late):
            await Patience(scale=0.001).wait(asyncio.sleep(600), 10)


def test_limits_that_shrank_recover() -> None:
    """A host that answers again is waited for as before."""
    for usual in (limits.EFFECT_SECONDS, LIMITS.call):
        waits = EffectTimeout(usual)
        for _ in range(EXPIRED_BEFORE_SHORT):
            assert waits.seconds == usual
            waits.expired()
        assert waits.seconds == limits.SHORT_SECONDS
        waits.came()
        assert waits.seconds == usual


async def test_the_machine_is_measured() -> None:
    """Several that ask have one answer."""
    machine = Machine()
    first, second = await asyncio.gather(machine.slowness(), machine.slowness())
    assert first == second >= 1.0


class TestRunner:
    async def test_an_error_is_tried_again_alone_after_all_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second result counts."""
        running, seen = 0, []

        async def run(self: Runner, check: Any) -> tuple[CheckResult, bool]:
            nonlocal running
            running += 1
            seen.append((check.id, running))
            await asyncio.sleep(0.01)
            running -= 1
            again = [each for each, _ in seen].count(check.id) > 1
            status = Status.PASS if again or check.id != failing else Status.ERROR
            return CheckResult(check.id, "", "", "", "must", None, status), status is Status.ERROR

        checks = [check for check in all_checks() if not check.alone][:5]
        failing = checks[0].id
        monkeypatch.setattr(Runner, "_run", run)
        kit = Runner(Session("a:b"), cast("Host", None), {})
        results = await asyncio.gather(*map(kit.run, checks))
        assert {result.status for result in results} == {Status.PASS}
        assert seen[-1] == (failing, 1)
        assert len(seen) == 6

    @pytest.mark.parametrize(
        ("path", "status", "body"),
        [
            ("x", 503, b'{"code":"storage_unavailable"}'),
            ("x", 200, b'{"data":{"status":"failed","reason":"storage_unavailable"}}'),
            ("api/integrations/health/ready", 503, b"database"),
        ],
        ids=["problem", "result", "readiness"],
    )
    async def test_a_database_that_fails_is_not_the_hosts_failure(
        self, path: str, status: int, body: bytes
    ) -> None:
        """Neither is what the kit itself could not do: both are errors."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "lifespan":
                for step in ("startup", "shutdown"):
                    await receive()
                    await send({"type": f"lifespan.{step}.complete"})
                return
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": body})

        session = Session("a:b")
        async with serve(app) as url:
            running = SimpleNamespace(env=SimpleNamespace(base_url=url))
            host = Host("h", cast("Any", running), cast("Any", None), Path(), 0)
            with pytest.raises(NothingKnown, match="the database that the kit gave did not answer") as raised:
                await Trial(session, SELF, host).request_url("GET", f"{url}/{path}")
        assert runner._judged(SELF, raised.value, fails=True)[0] is Status.ERROR


@pytest.mark.ci
async def test_an_effect_has_all_the_time_of_a_slow_machine() -> None:
    """It may be behind others that are sent before it."""
    session = Session("a:b", effect_timeout=EffectTimeout(0.2))
    session.patience = Patience(slow(20))
    host = Host("h", cast("Any", None), cast("Any", None), Path(), 0)
    assert await Trial(session, SELF, host).patiently(asyncio.sleep(3, "came")) == "came"


@pytest.mark.ci
async def test_a_process_that_ends_before_it_has_read_all_has_ended() -> None:
    """Its connection is reset then, which is told at once, and is not waited for until a limit."""
    async with Session("tests.conformance.misbehaving:ends_unread", mode="child").running() as session:
        host = await session.start()
        blocking = asyncio.create_task(host.running.call("open", "flow", "user", "content"))
        await until((host.folder / "state" / "blocked").exists)
        unread = asyncio.create_task(host.running.call("next", "session", "step"))
        await asyncio.sleep(0)  # it is written
        (host.folder / "state" / "end").touch()
        for ended in await asyncio.gather(blocking, unread, return_exceptions=True):
            assert "the host's process ended (status 0)" in str(ended)
        await host.running.stop()


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["in-process", "child"])
@pytest.mark.parametrize(
    "logged",
    [
        "no connection: sorry, too many clients already",
        "Host.signing_secret did not answer within 10 s",
        "Host.node failed\nTraceback (most recent call last):\n  File\nTimeoutError",
    ],
)
async def test_what_a_host_logs_in_a_process_of_its_own_is_read_too(mode: Mode, logged: str) -> None:
    """It says that database or host did not answer in time, or that the server takes no more connections."""
    async with Session("tests.conformance.misbehaving:logs_content", mode=mode).running() as session:
        host = await session.start()
        trial = Trial(session, SELF, host)
        await host.running.call("open", "flow", "user", "nothing of that kind")
        await until(lambda: "nothing of that kind" in session.output.text())
        assert not trial.saw_overload
        await host.running.call("open", "flow", "user", logged)
        await until(lambda: trial.saw_overload)
        trial.end()
        await host.running.stop()


@pytest.mark.ci
async def test_a_host_that_once_answered_too_late_has_not_failed() -> None:
    """The check is tried again, alone."""
    report = await run_checks("tests.conformance.misbehaving:answers_late_once", ["PACING-2"])
    assert [(result.status, result.finding) for result in report.results] == [(Status.PASS, None)]


async def test_a_list_that_comes_later_than_effects_is_read() -> None:
    """A delivery is not said to go on because the request for it took longer than an effect may."""
    asked, answer = [], asyncio.Event()
    session = Session("a:b", effect_timeout=EffectTimeout(2))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await empty_app(scope, receive, send)
            return
        asked.append(scope["path"])
        if len(asked) == 1:
            await answer.wait()
        answer.set()
        rows = [{"url": trial.hook("order"), "status": "dead"}]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"data": rows}).encode()})

    async def call(*_: object) -> dict[str, str]:
        return {}

    async with serve(app) as url:
        running = SimpleNamespace(
            env=SimpleNamespace(base_url=url), about=SimpleNamespace(prefix=""), call=call, serves=True
        )
        trial = Trial(session, SELF, Host("h", cast("Any", running), cast("Any", None), Path(), 0))
        assert (await until_dead(trial, "order"))["status"] == "dead"
    assert asked == [LIST, LIST]


async def test_the_hosts_of_a_check_end_with_it() -> None:
    """Those of all checks together would use up the connections of a server."""
    async with Session("tests.conformance.misbehaving:logs_content").running() as session:
        shared = await session.start()
        trial = Trial(session, SELF, shared)
        own = [await trial.start(), await trial.start(beside=shared)]
        trial.end()
        await session.until_released()
        assert [host.running.left_at is None for host in (shared, *own)] == [True, False, False]


@pytest.mark.ci
@pytest.mark.parametrize("mode", ["in-process", "child"])
async def test_a_stop_that_nobody_judges_is_not_waited_for_longer_on_a_slow_machine(
    mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a run all hosts are ended: one that hangs is then told by the check that stops it, once."""

    async def slowness() -> float:
        raise AssertionError("the machine was measured")

    host = "tests.conformance.misbehaving:hangs_at_stop"
    async with Session(host, mode=mode, limits=HANGS).running() as session:
        running = (await session.start()).running
        monkeypatch.setattr(session.patience, "slowness", slowness)
        with pytest.raises(DriverFault, match=f"the host did not stop within {HANGS.stop:g} seconds"):
            await running.stop(is_judged=False)


def test_the_page_has_the_limits() -> None:
    """As the kit has them."""
    table = PAGE.read_text().partition("| what is waited for |")[2].partition("\n\n")[0]
    shown = [float(number) for number in re.findall(r"\| (\d+) \|", table)]
    assert shown == [
        limits.START_SECONDS,
        limits.STOP_SECONDS,
        limits.CALL_SECONDS,
        limits.REQUEST_SECONDS,
        limits.EFFECT_SECONDS,
        limits.CHECK_SECONDS,
    ]


HANGS = Limits(start=12, stop=2, call=4, hung_stop=0.5, hung_call=1)
"""Long enough for what does not hang on a busy machine, where it may have no processor for seconds."""
