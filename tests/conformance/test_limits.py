"""How long hosts are waited for, also on a slow machine."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flowactions_conformance.kit.hosts import limits
from flowactions_conformance.kit.hosts.limits import EXPIRED_BEFORE_SHORT, Late, Machine, Patience
from flowactions_conformance.kit.outcomes import CheckResult, DriverFault, NothingKnown, Status
from flowactions_conformance.kit.preflight import SELF
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import Runner, run_checks
from flowactions_conformance.kit.session import Host, Session
from flowactions_conformance.kit.support.deliveries import LIST, until_dead
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.serving import serve
from tests.conformance.faulty import factory_of
from tests.conformance.misbehaving import empty_app
from tests.conformance.test_faulty import FOUND, SEED
from tests.conformance.test_reports import a_result
from tests.waiting import until

PAGE = Path(__file__).parents[2] / "docs/how-to/prove-your-host.md"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Patience]:
    """Makes what waits for an effect for so many seconds."""

    def made(seconds: float, factor: float | None = None, scale: float = 1.0) -> Patience:
        monkeypatch.setitem(limits.SECONDS, "effect", seconds)
        return Patience(scale, None if factor is None else lambda: factor)

    return made


class TestPatience:
    async def test_what_comes_is_given_and_what_fails_fails(self, patient: Callable[..., Patience]) -> None:
        """Whoever waits sees no difference."""

        async def fails() -> None:
            raise LookupError

        patience = patient(60, 5)
        assert await patience.wait(asyncio.sleep(0, "came"), "effect") == "came"
        with pytest.raises(LookupError):
            await patience.wait(fails(), "effect")

    async def test_on_a_fast_machine_a_limit_ends_the_wait(self, patient: Callable[..., Patience]) -> None:
        """And what was waited for is cancelled. One factor scales all limits."""
        for seconds, scale in ((0.01, 1.0), (10, 0.001)):
            waiting = asyncio.ensure_future(asyncio.sleep(600))
            with pytest.raises(Late):
                await patient(seconds, scale=scale).wait(waiting, "effect")
            assert waiting.cancelled()

    @pytest.mark.parametrize("later", [1.0, 20.0])
    async def test_on_a_slow_machine_the_limit_grows(
        self, later: float, patient: Callable[..., Patience]
    ) -> None:
        """What comes later than the limit has still come. It is measured several times until then, and the worst counts."""
        measured = iter([20.0])

        patience = patient(0.1)
        patience.slowness = lambda: next(measured, later)
        assert await patience.wait(asyncio.sleep(0.5, "came"), "effect") == "came"

    @pytest.mark.parametrize("factor", [14, 100])
    async def test_what_does_not_come_on_a_slow_machine_is_not_known(
        self, factor: int, patient: Callable[..., Patience]
    ) -> None:
        """The message says how slow it was. Of what nobody judges, the limit does not grow."""
        with pytest.raises(NothingKnown, match=f"{factor} times slower than needed"):
            await patient(0.01, factor).wait(asyncio.sleep(600), "effect")
        with pytest.raises(Late):
            await patient(0.01, factor).wait(asyncio.sleep(600), "effect", judged=False)

    async def test_limits_that_shrank_recover(
        self, patient: Callable[..., Patience], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A host that answers again is waited for as before."""
        monkeypatch.setattr(limits, "SHORT_SECONDS", 0.01)
        patience = patient(0.02)
        for _ in range(EXPIRED_BEFORE_SHORT):
            assert patience.limit("effect") == 0.02
            with pytest.raises(Late):
                await patience.wait(asyncio.sleep(600), "effect")
        assert patience.limit("effect") == 0.01
        await patience.wait(asyncio.sleep(0), "effect")
        assert patience.limit("effect") == 0.02


def test_the_machine_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """By how long a thread has waited for a processor while it worked. It is measured again after a second."""
    schedules = iter([(10**9, 10**9), (10**9 + 1_000, 10**9 + 5_000)])
    monkeypatch.setattr(limits, "_schedule", lambda: next(schedules))
    # A process that is stopped meanwhile does not measure again.
    monkeypatch.setattr(limits, "FRESH_SECONDS", 300.0)
    machine = Machine()
    assert [machine.slowness(), machine.slowness()] == [6.0, 6.0]


def test_a_host_that_waits_for_itself_makes_no_machine_slow() -> None:
    """What a thread sleeps is neither work, nor a wait for a processor.

    On a busy machine, a kernel may count some sleeps as waits, but not all.
    """

    def counted() -> float:
        before, began = limits._schedule(), time.perf_counter()
        time.sleep(0.1)
        after, took = limits._schedule(), time.perf_counter() - began
        return (sum(after) - sum(before)) / 1e9 / took

    assert any(counted() < 0.5 for _ in range(20))


class TestRunner:
    async def test_an_error_is_tried_again_alone_after_all_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The second result counts."""
        running, seen = 0, []

        async def run(self: Runner, check: Any, **_: bool) -> tuple[CheckResult, bool]:
            nonlocal running
            running += 1
            seen.append((check.id, running))
            await asyncio.sleep(0.01)
            running -= 1
            again = [each for each, _ in seen].count(check.id) > 1
            status = Status.PASS if again or check.id != failing else Status.ERROR
            return a_result(check.id, status), status is Status.ERROR

        checks = [check for check in all_checks() if not check.alone][:5]
        failing = checks[0].id
        monkeypatch.setattr(Runner, "_run", run)
        results: list[CheckResult] = []
        await Runner(Session("a:b"), cast("Host", None), results.append).run(checks)
        assert [result.status for result in results] == [Status.PASS] * len(checks)
        assert seen[-1] == (failing, 1)
        assert len(seen) == 6


@pytest.mark.parametrize(
    ("fault", "check", "status"),
    [("innermost-round-only", "MODEL-5", Status.FAIL), ("skipped-ends", "HALT-1", Status.ERROR)],
    ids=["a wrong visit", "a node that was not reached"],
)
async def test_a_slow_machine_excuses_what_is_missing_and_no_wrong_value(
    fault: str, check: str, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what did not come, nothing is known; that a host wrote another value than it should is its own doing."""
    monkeypatch.setattr(Machine, "slowness", lambda _self: 5.0)
    monkeypatch.setattr(
        Trial, "saw_overload", property(lambda _self: True, lambda _self, _value: None), raising=False
    )
    report = await run_checks(factory_of(FOUND[fault]), [check], seed=SEED)
    assert [result.status for result in report.results] == [status]


@pytest.mark.ci
async def test_a_process_that_ends_before_it_has_read_all_has_ended() -> None:
    """Its connection is reset then, which is told at once, and is not waited for until a limit."""
    async with Session("tests.conformance.misbehaving:ends_unread").running() as session:
        host = await session.start()
        blocking = asyncio.create_task(host.running.call("open", "flow", "user", "content"))
        await until((host.running.env.state_dir / "blocked").exists)
        unread = asyncio.create_task(host.running.call("next", "session", "step"))
        await asyncio.sleep(0)  # it is written
        (host.running.env.state_dir / "end").touch()
        for ended in await asyncio.gather(blocking, unread, return_exceptions=True):
            assert "the host's process ended (status 0)" in str(ended)
        await host.running.stop()


@pytest.mark.ci
@pytest.mark.parametrize("host_name", ["logs_content", "logs_content_as_child"])
async def test_what_a_host_logs_in_a_process_of_its_own_is_read_too(host_name: str) -> None:
    """It says that database or host did not answer in time, or that the server takes no more connections."""
    async with Session(f"tests.conformance.misbehaving:{host_name}").running() as session:
        host = await session.start()
        for logged in (
            "no connection: sorry, too many clients already",
            "Host.signing_secret did not answer within 10 s",
            "Host.node failed\nTraceback (most recent call last):\n  File\nTimeoutError",
        ):
            trial = Trial(session, SELF, host)
            await host.running.call("open", "flow", "user", f"nothing of that kind before {logged[:9]}")
            await until(lambda: f"of that kind before {logged[:9]}" in session.output.text())  # noqa: B023
            assert not trial.saw_overload
            await host.running.call("open", "flow", "user", logged)
            await until(lambda: trial.saw_overload)  # noqa: B023
            trial.end()


@pytest.mark.ci
async def test_a_host_that_once_answered_too_late_has_not_failed() -> None:
    """The check is tried again, alone."""
    report = await run_checks("tests.conformance.misbehaving:answers_late_once", ["PACING-4"])
    assert [(result.status, result.finding) for result in report.results] == [(Status.PASS, None)]


async def test_a_list_that_comes_later_than_effects_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delivery is not said to go on because the request for it took longer than an effect may."""
    asked, answer = [], asyncio.Event()
    monkeypatch.setitem(limits.SECONDS, "effect", 5.0)
    monkeypatch.setattr(Machine, "slowness", lambda _: 1.0)
    session = Session("a:b")

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
            env=SimpleNamespace(base_url=url), about=SimpleNamespace(prefix=""), call=call
        )
        trial = Trial(session, SELF, Host("h", cast("Any", running)))
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
@pytest.mark.parametrize("host", ["hangs_at_stop", "hangs_at_stop_as_child"])
async def test_a_host_that_does_not_stop_is_ended(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a run all hosts are: one that hangs is then told by the check that stops it, once."""
    monkeypatch.setitem(limits.SECONDS, "stop", 2.0)
    async with Session(f"tests.conformance.misbehaving:{host}").running() as session:
        running = (await session.start()).running
        with pytest.raises(DriverFault, match="the host did not stop within 2 seconds"):
            await running.stop(judged=False)


def test_the_page_has_the_limits() -> None:
    """As the kit has them."""
    table = PAGE.read_text().partition("| what is waited for |")[2].partition("\n\n")[0]
    shown = [float(number) for number in re.findall(r"\| (\d+) \|", table)]
    assert shown == list(limits.SECONDS.values())
