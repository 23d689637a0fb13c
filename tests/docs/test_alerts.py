"""The alert rules, evaluated over what real hosts record while they are quiet, stalled and failing.

The hosts run for a moment each; what they report stands for one sample a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from sqlalchemy import update

from flowactions_hookspecs import FlowActions, Node
from flowactions_plugin.insights.gauges import Gauges
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.queue.delivery_telemetry import Load
from flowactions_plugin.storage.schema import outbox
from flowactions_plugin.telemetry.names import METRICS
from tests.docs.alerts import RULES
from tests.docs.promql import Labels, Series, evaluate
from tests.outages import Outage
from tests.recorder import Recorder, recorder, status
from tests.support import SmallHost, a_walk, development, services_of
from tests.telemetry import Recorded
from tests.waiting import until

MINUTES = 40
NAMES = {metric.name: metric.prometheus for metric in METRICS if metric.kind != "histogram"}

Scenario = Callable[["Running"], Awaitable[None]]


class Running:
    """A host that is watched: its samples, one a minute."""

    def __init__(
        self, host: SmallHost, outage: Outage, actions: FlowActions, receiver: Recorder, recorded: Recorded
    ) -> None:
        self.host = host
        self.outage = outage
        self.actions = actions
        self.receiver = receiver
        self.recorded = recorded
        database = services_of(host)._database
        self.gauges = Gauges(
            services_of(host)._telemetry.meters,
            Insights(
                database,
                services_of(host)._settings,
                lambda: self._minute * 60_000,
            ),
            Load,
        )
        self._samples: dict[tuple[str, Labels], list[tuple[float, float]]] = {}
        self._minute = 0

    async def send(self, path: str = "", number: int = 1) -> None:
        """Send webhooks, each of which has ended on return."""
        before = len(self.host.finished)
        for _ in range(number):
            config = {"webhookUrl": self.receiver.url + path, "webhookBody": "{}"}
            await self.actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
        await until(lambda: len(self.host.finished) == before + number)

    async def minutes(self, number: int = 1) -> None:
        """Let minutes pass in which nothing changes: a sample each."""
        for _ in range(number):
            await self.gauges.read()
            # The host reads its own every 15 seconds, which is longer than this takes.
            services_of(self.host)._telemetry.meters.read_gauges(self.gauges.readings)
            for point in self.recorded.points():
                if point.name in NAMES:
                    series = (NAMES[point.name], frozenset(point.labels.items()))
                    self._samples.setdefault(series, []).append((self._minute * 60.0, point.value))
            self._minute += 1

    @property
    def series(self) -> Sequence[Series]:
        return [Series(name, labels, samples) for (name, labels), samples in self._samples.items()]


async def recording(tmp_path: Path, scenario: Scenario, **settings: str) -> Sequence[Series]:
    """Run a host through a scenario; give what it has recorded."""
    recorded = Recorded()
    outage = Outage(f"sqlite:///{tmp_path / 'f.db'}", "read-only file")
    engine = outage.engine()
    host = SmallHost(development(outage.url, **settings), database=engine)
    recorded.listen_to(host)
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        running = Running(host, outage, actions, receiver, recorded)
        await scenario(running)
    if engine is not None:
        await engine.dispose()
    return running.series


def firing(series: Sequence[Series]) -> set[str]:
    """Give the alerts that fire at some minute: whose expression has held for as long as the rule says."""
    found = set()
    for rule in RULES:
        held = 0
        for minute in range(MINUTES):
            held = held + 1 if evaluate(rule.expression, series, minute * 60.0) else 0
            if held > rule.minutes:
                found.add(rule.name)
    return found


async def quiet(running: Running) -> None:
    """A few webhooks arrive, then nothing happens."""
    for _ in range(10):
        await running.send()
        await running.minutes()
    await running.minutes(MINUTES - 10)


async def stalled(running: Running) -> None:
    """Webhooks are due, and there is no worker."""
    await running.minutes(5)
    config = {"webhookUrl": running.receiver.url, "webhookBody": "{}"}
    await running.actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
    async with services_of(running.host)._database.write() as connection:
        hour_ago = outbox.c.next_attempt_at - 3_600_000
        await connection.execute(update(outbox).values(next_attempt_at=hour_ago, created_at=hour_ago))
    await running.minutes(MINUTES - 5)


async def unwritable(running: Running) -> None:
    """The database is read-only, and a webhook is refused a minute."""
    await running.send()
    await running.minutes(5)
    running.outage.broken = True
    for _ in range(10):
        config = {"webhookUrl": running.receiver.url, "webhookBody": "{}"}
        result = await running.actions.reach(a_walk(), Node(id="n", type="webhook", config=config))
        assert result.reason == "storage_unavailable"
        await running.minutes()
    await running.minutes(MINUTES - 15)
    running.outage.broken = False


async def alone(running: Running) -> None:
    """Nothing is due, and there is no worker."""
    await running.minutes(MINUTES)


async def failing(running: Running) -> None:
    """The receiver answers with errors, and what is sent is dead."""
    await running.send()
    await running.minutes(5)
    running.receiver.answer = lambda number: status(500)
    for _ in range(25):
        await running.send(number=2)
        await running.minutes()
    await running.minutes(MINUTES - 30)


SCENARIOS: Sequence[tuple[Scenario, dict[str, str], set[str]]] = [
    (quiet, {}, set()),
    (stalled, {"FLOWACTIONS_HOST_WORKER": "off"}, {"FlowactionsStalled", "FlowactionsOldestDue"}),
    (alone, {"FLOWACTIONS_HOST_WORKER": "off"}, {"FlowactionsNoWorker"}),
    (unwritable, {}, {"FlowactionsUnwritable", "FlowactionsRefused"}),
    (failing, {}, {"FlowactionsFailing", "FlowactionsDead"}),
]


@pytest.mark.parametrize(("scenario", "settings", "wanted"), SCENARIOS)
async def test_the_right_alerts_fire(
    tmp_path: Path, scenario: Scenario, settings: dict[str, str], wanted: set[str]
) -> None:
    """Quiet hosts wake nobody; each trouble is told by its own alerts, and by no others."""
    series = await recording(tmp_path, scenario, **settings)
    assert firing(series) == wanted


def made(name: str, values: Sequence[float], **labels: str) -> Series:
    return Series(
        name, frozenset(labels.items()), [(minute * 60.0, value) for minute, value in enumerate(values)]
    )


ALIVE = [made("flowactions_delivery_verdict", [1] * MINUTES, verdict="idle")]
GROWING = [float(minute) for minute in range(MINUTES)]
STILL = [5.0] * MINUTES


@pytest.mark.parametrize(
    ("series", "wanted"),
    [
        ([], {"FlowactionsUnwatched"}),
        ([*ALIVE, made("flowactions_delivery_reclaims_total", GROWING)], {"FlowactionsWorkersEnd"}),
        ([*ALIVE, made("flowactions_delivery_reclaims_total", STILL)], set()),
        ([*ALIVE, made("flowactions_worker_clock_offset_seconds", [61.0] * MINUTES)], {"FlowactionsClock"}),
        ([*ALIVE, made("flowactions_worker_clock_offset_seconds", STILL)], set()),
        ([*ALIVE, made("flowactions_outbox_blocked_age_seconds", [301.0] * MINUTES)], {"FlowactionsBlocked"}),
        ([*ALIVE, made("flowactions_outbox_blocked_age_seconds", [299.0] * MINUTES)], set()),
        (
            [
                *ALIVE,
                made("flowactions_chat_sends_total", GROWING, target="channel", result="send_failed"),
                made("flowactions_chat_sends_total", STILL, target="channel", result="sent"),
            ],
            {"FlowactionsChatFailing"},
        ),
        (
            [*ALIVE, made("flowactions_inbound_requests_total", GROWING, source="auth", result="refused")],
            {"FlowactionsInboundRefused"},
        ),
        (
            [
                *ALIVE,
                made("flowactions_inbound_requests_total", GROWING, source="auth", result="refused"),
                made("flowactions_inbound_requests_total", GROWING, source="auth", result="processed"),
            ],
            set(),
        ),
    ],
)
def test_the_other_alerts_fire_for_their_series(series: Sequence[Series], wanted: set[str]) -> None:
    """Nobody reports, workers end, a clock is wrong, chat fails, a signing secret is wrong; and not for what looks alike."""
    assert firing(series) == wanted


def test_every_alert_is_seen_to_fire() -> None:
    """The cases above leave none out."""
    seen = {name for _, _, wanted in SCENARIOS for name in wanted}
    assert seen | {
        "FlowactionsUnwatched",
        "FlowactionsWorkersEnd",
        "FlowactionsClock",
        "FlowactionsBlocked",
        "FlowactionsChatFailing",
        "FlowactionsInboundRefused",
    } == {rule.name for rule in RULES}


@pytest.mark.parametrize(
    "wrong", ["max(", "max(x) >", "max(x) ==== 1", "x{a=}", "rate(x)", "sum by (rate(x[5m]))"]
)
def test_what_is_no_expression_is_refused(wrong: str) -> None:
    """A rule with a missing bracket or a wrong sign would fail in the tests above."""
    with pytest.raises((SyntaxError, IndexError)):
        evaluate(wrong, [], 0.0)
