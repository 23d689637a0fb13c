"""Which command runs a test: the README's, or `.ci/run`, which runs those as well.

A test is in the README's ring unless it says otherwise where it stands: by the marker ``ci``, or by its folder in one of the
tables below. What is marked ``long`` is run by hand, and a combination of parameters that repeats another is not run at all.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import pytest

CI: Final = (
    "tests/benchmarks/",
    "tests/editor/",
    "tests/receivers/test_functions.py",
)
"""Whole folders that `.ci/run` adds."""

DEAR: Final = (
    "tests/browser/test_demo_pages.py::test_a_flow_with_both_nodes_is_built_run_and_seen",
    "tests/conformance/test_healthy_hosts.py::test_the_kit_blames_no_healthy_host[flask",
    "tests/conformance/test_healthy_hosts.py::test_the_kit_blames_no_healthy_host[reference",
    "tests/conformance/test_served_hosts.py",
    "tests/crash/test_enqueue_together.py",
    "tests/crash/test_joined_statements.py::test_killed_before_the_commit_neither_is_there_and_after_it_both[postgresql",
    "tests/crash/test_joined_statements.py::test_killed_before_the_commit_neither_is_there_and_after_it_both[sqlite django",
    "tests/crash/test_kill.py::test_a_restarted_postgresql_loses_nothing",
    "tests/docs/test_watch.py::test_five_lines_configure_metrics_and_traces",
    "tests/plugin/cli/test_agents.py::test_a_database_that_is_away_is_an_error",
    "tests/plugin/cli/test_agents.py::test_a_filter_is_counted_before_it_changes_anything",
    "tests/plugin/cli/test_agents.py::test_a_result_is_bounded",
    "tests/plugin/cli/test_agents.py::test_a_role_that_may_only_read_serves_what_reads",
    "tests/plugin/cli/test_agents.py::test_a_server_of_one_organization_sees_no_other",
    "tests/plugin/cli/test_agents.py::test_standard_output_carries_the_protocol_alone",
    "tests/plugin/cli/test_agents.py::test_texts_from_outside_are_marked_as_data",
    "tests/plugin/cli/test_agents.py::test_the_guide_configures_a_client",
    "tests/plugin/cli/test_agents.py::test_what_is_wrong_is_said_in_words",
    "tests/plugin/cli/test_changing.py::test_an_interrupted_command_says_how_it_goes_on",
    "tests/plugin/cli/test_first_process.py::test_a_worker_drains_as_the_first_process",
    "tests/plugin/health/test_grown.py::test_lists_cost_no_more_with_ten_times_the_rows_of_everything[sqlite-o8",
    "tests/plugin/queue/test_lanes.py::test_a_hundred_thousand_lanes_take_at_most_64_mib",
    "tests/plugin/test_cli.py::test_a_second_signal_ends_it_at_once",
    "tests/plugin/test_cli.py::test_a_worker_delivers_for_any_kind_of_host",
    "tests/plugin/test_secrets.py::test_a_running_host_shows_nothing",
)
"""What takes a second of a processor or more, beside a smaller case of the same in the README's ring. `.ci/run` adds it."""

TWINS: Final = (
    "tests/plugin/queue/test_claim_ends.py",
    "tests/plugin/queue/test_claimed.py",
    "tests/plugin/queue/test_enqueue_together.py",
    "tests/plugin/queue/test_leases.py",
    "tests/plugin/queue/test_lost_answers.py",
    "tests/plugin/queue/test_plans.py",
    "tests/plugin/queue/test_scheduled.py",
    "tests/plugin/queue/test_sequences.py",
    "tests/plugin/queue/test_store.py",
    "tests/plugin/storage/",
)
"""Where tests are about statements that are not the same on both databases: on both, also in the README's ring."""

OWN_SQL: Final = (
    "tests/plugin/alerts/test_kinds.py::test_dead_deliveries",
    "tests/plugin/alerts/test_owner.py::TestOrigin",
    "tests/plugin/bulk/",
    "tests/plugin/chat/test_connections.py::TestKeys",
    "tests/plugin/chat/test_connections.py::TestTenancy",
    "tests/plugin/chat/test_install.py::TestInstall::test_a_callback_works_once",
    "tests/plugin/chat/test_install.py::TestInstall::test_concurrent_callbacks_connect_once",
    "tests/plugin/chat/test_install.py::TestInstall::test_reinstalling_replaces_and_keeps_the_default_channel",
    "tests/plugin/deliveries/",
    "tests/plugin/health/",
    "tests/plugin/logic/test_enqueue.py",
    "tests/plugin/nodes/test_pacing.py",
    "tests/plugin/nodes/test_store.py",
    "tests/plugin/queue/test_event_ids.py::TestCalls",
    "tests/plugin/queue/test_event_ids.py::TestRate",
    "tests/plugin/queue/test_own_webhooks.py",
    "tests/plugin/test_cli.py::test_before_the_first_start",
)
"""Where tests are about statements of our own that are the same on both databases (how each of them does what it is for, on rows and
values of every kind): `.ci/run` adds all their cases on PostgreSQL. Elsewhere it adds one case of each test, except for `ABOVE_SQL`.
An entry is the start of node ids, as in all these tables."""

ABOVE_SQL: Final = (
    "tests/contract/",
    "tests/plugin/chat/test_events.py::TestReading",
    "tests/plugin/chat/test_events.py::TestRefusals",
    "tests/plugin/chat/test_events.py::TestVerifying",
    "tests/plugin/egress/",
    "tests/plugin/http/",
    "tests/plugin/inbound/test_refusals.py",
    "tests/plugin/inbound/test_verify.py",
    "tests/plugin/nodes/test_chat_message.py::TestFailing",
    "tests/plugin/nodes/test_chat_message.py::TestSending",
    "tests/plugin/nodes/test_checks.py",
    "tests/plugin/nodes/test_node_routes.py",
    "tests/plugin/nodes/test_node_tests.py::TestChat",
    "tests/plugin/nodes/test_node_tests.py::TestWebhook",
    "tests/plugin/nodes/test_preview.py",
    "tests/plugin/nodes/test_webhook.py::TestBeingTold",
    "tests/plugin/nodes/test_webhook.py::TestDelivery",
    "tests/plugin/nodes/test_webhook.py::TestSkipped",
    "tests/plugin/nodes/test_whose_secret.py",
    "tests/plugin/pages/",
    "tests/plugin/queue/test_host_calls.py",
    "tests/plugin/queue/test_own_signing.py",
    "tests/plugin/queue/test_sizes.py",
    "tests/plugin/telemetry/",
    "tests/plugin/test_host_answers.py",
    "tests/reference_host/",
)
"""Where tests are about HTTP, signatures, configs, pages and answers of hosts and providers. Other tests try the statements behind them on both databases.
So these run on SQLite only."""

KILLS: Final = "tests/crash/"
"""Where processes are killed. The README's ring kills on SQLite, and `.ci/run` on PostgreSQL, in tests of its own, too."""

DATABASES: Final = ("sqlite", "postgresql")
MODES: Final = ("scheduled", "continuous")
MOSTLY_RUN: Final = {("sqlite", "scheduled"), ("postgresql", "continuous")}
"""Of tests in both modes on both databases: each database as it is mostly run."""

PROGRAMS: Final = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"),
    "node and npm": ("npm",),
    "go": ("go",),
    "java": ("javac",),
    "ruby": ("ruby",),
    "php": ("php",),
    "nginx": ("nginx",),
}
"""What tests use that pip does not install, by the commands that do. A test of one that is not there is skipped, but not in CI."""

BEYOND: Final = "beyond the sample"

README: Final = pytest.StashKey[frozenset[str]]()
"""The tests of the README's ring among those that were collected, without parameters."""

TEST_SECONDS: Final = {"ci and not long": 0.7, "not long": 0.2}
"""Of one processor, on an average over what a command's ``-m`` chooses; otherwise `README_SECONDS`."""

README_SECONDS: Final = 0.06
"""The same over the README's ring."""


def announcement(count: int, processors: int, chosen: str = "") -> str:
    """Say what a run is about to do.

    Args:
        count: of its tests.
        processors: that it may use.
        chosen: the expression of ``-m``.
    """
    minutes = max(1, round(count * TEST_SECONDS.get(chosen, README_SECONDS) / processors / 60))
    missing = [name for name, commands in PROGRAMS.items() if not any(map(shutil.which, commands))]
    skipped = f"; skipped, for they are not here: what needs {', '.join(missing)}" if missing else ""
    return f"{count:,} tests, about {minutes} min on {processors} idle processors{skipped}"


def sampled(
    names: str | tuple[str, ...], values: Iterable[Any], size: int, **options: Any
) -> pytest.MarkDecorator:
    """Parametrize a test of whose values the README's ring has a sample, and `.ci/run` all.

    Of a test with several such parameters, `.ci/run` has each value with the others' samples.

    Args:
        names: as of ``pytest.mark.parametrize``; of several, the last is what is expected, and the same in all cases.
        values: as there.
        size: of the sample: the first value, the last and some between; of one, the one in the middle.
        options: as there.

    Raises:
        ValueError: cases expect different outcomes, and the sample leaves some out. Each is a rule of its own, or shows where one ends.
    """
    several = isinstance(names, tuple)
    params = [_param(each, several=several) for each in values]
    last = len(params) - 1
    chosen = {last // 2} if size == 1 else {round(number * last / (size - 1)) for number in range(size)}
    differ = several and any(each.values[-1] != params[0].values[-1] for each in params)
    if differ and len(chosen) < len(params):
        raise ValueError("a table of rules, whose cases expect different outcomes: keep all of them")
    beyond = pytest.mark.ci(BEYOND)
    marked = [
        each if index in chosen else pytest.param(*each.values, marks=[*each.marks, beyond], id=each.id)
        for index, each in enumerate(params)
    ]
    return pytest.mark.parametrize(names, marked, **options)


def _param(value: Any, *, several: bool) -> Any:
    if hasattr(value, "marks"):
        return value
    return pytest.param(*value) if several else pytest.param(value)


class Case(NamedTuple):
    """A test with its parameters.

    Attributes:
        node_id: pytest's.
        marks: the names of its markers.
        beyond: how many of its parameters are beyond their sample (`sampled`).
    """

    node_id: str
    marks: frozenset[str]
    beyond: int = 0

    @classmethod
    def of(cls, item: pytest.Item) -> Case:
        """Return what decides about the ring of a test that was collected."""
        marks = list(item.iter_markers())
        return cls(
            item.nodeid, frozenset(each.name for each in marks), sum(BEYOND in each.args for each in marks)
        )

    @property
    def parameters(self) -> list[str]:
        """The ids of its parameters."""
        return self.node_id.partition("[")[2].rstrip("]").split("-")

    @property
    def database(self) -> str | None:
        """Which database it is on; ``None``: it has no such parameter."""
        return next((each for each in DATABASES if each in self.parameters), None)

    @property
    def mode(self) -> str | None:
        """Which mode delivers; ``None``: it has no such parameter."""
        return next((each for each in MODES if each in self.parameters), None)

    @property
    def test(self) -> str:
        """Which test it is a case of."""
        return self.node_id.partition("[")[0]

    @property
    def alike(self) -> tuple[str, ...]:
        """What it has in common with the same test on another database or in another mode."""
        others = [each for each in self.parameters if each not in {*DATABASES, *MODES}]
        return self.test, *others


def rings(cases: Iterable[Case]) -> dict[str, str]:
    """Return the ring of each test that is not in the README's: ``ci``, ``long`` or ``none``."""
    groups: defaultdict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.alike].append(case)
    found: dict[str, str] = {}
    repeated: set[str] = set()
    for group in groups.values():
        on = {(case.database, case.mode) for case in group}
        for case in group:
            ring = _ring(case, on)
            is_own = case.node_id.startswith(OWN_SQL)
            if ring == "ci" and "ci" not in case.marks and case.database == "postgresql" and not is_own:
                # One case shows that a test's statements are those of both databases.
                ring = "none" if case.test in repeated else ring
                repeated.add(case.test)
            if ring is not None:
                found[case.node_id] = ring
    return found


def _ring(case: Case, on: set[tuple[str | None, str | None]]) -> str | None:
    """Return the ring of a test, by what else of its kind there is: one of those alike stays in the README's ring."""
    if "long" in case.marks:
        return "long"
    if case.beyond > 1:
        return "none"
    if (
        case.node_id.startswith(KILLS)
        and "ci" in case.marks
        and case.database == "sqlite"
        and case.mode is None
    ):
        return "none" if ("postgresql", None) in on else "ci"
    is_repeated = case.database is not None and case.mode is not None and not MOSTLY_RUN.isdisjoint(on)
    if is_repeated and (case.database, case.mode) not in MOSTLY_RUN:
        return "none"
    has_sqlite = any(
        database == "sqlite" and (case.mode is None or (database, mode) in MOSTLY_RUN) for database, mode in on
    )
    repeats = case.database == "postgresql" and has_sqlite and not case.node_id.startswith(TWINS)
    if repeats and (
        (case.beyond and not case.node_id.startswith(OWN_SQL)) or case.node_id.startswith(ABOVE_SQL)
    ):
        return "none"
    return "ci" if repeats or "ci" in case.marks or case.node_id.startswith((*CI, *DEAR)) else None
