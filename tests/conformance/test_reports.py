"""What the kit says of a run: on the terminal, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from flowactions_conformance.kit.outcomes import CheckResult, Finding, Moment, Report, Status
from flowactions_conformance.kit.registry import PROFILES
from flowactions_conformance.kit.report.summary import headline
from flowactions_conformance.kit.report.terminal import SHOWN_MOMENTS, coloured, report_text
from flowactions_conformance.kit.report.written import write_report
from flowactions_conformance.kit.runner import run_checks

HOSTILE = "</pre></style><script>alert(1)</script><img src=x onerror=alert(2)>&lt; \x1b[2J\r\udce9"


def a_result(id_: str, status: Status, **more: object) -> CheckResult:
    """A check's result, with a finding unless it passed."""
    found = None
    if status not in {Status.PASS, Status.NOT_CLAIMED}:
        found = Finding(
            message=f"what is wrong in {id_}",
            expected="one request\nwith the run's id",
            actual="two requests",
            causes=("the host calls advance() twice", "the lock is released too early"),
        )
    fields = {
        "id": id_,
        "profile": "core",
        "title": f"Title of {id_}.",
        "clause": "contract: Advancing; spec 3.2",
        "since": "1.0",
        "status": status,
        "finding": found,
        "timeline": (
            Moment(at=0.1, source="kit", text="open flow-1"),
            Moment(at=1.25, source="probe", text="reach"),
        ),
        "seconds": 1.5,
        "rerun": f"python -m flowactions_conformance run mypkg.testing:make_host --check {id_}",
        **more,
    }
    return msgspec.convert(fields, CheckResult, from_attributes=True)


def a_report(*results: CheckResult, **more: object) -> Report:
    """A report of a host that claims ``core`` and ``pacing``."""
    fields: dict[str, object] = {
        "host": "mypkg.testing:make_host",
        "contract": "1.0",
        "kit": "0.2.0",
        "mode": "in-process",
        "database": "sqlite",
        "started_at": "2026-01-01T00:00:00+00:00",
        "seconds": 12.34,
        "claims": ("core", "pacing"),
        "results": results,
        **more,
    }
    return Report(**fields)  # type: ignore[arg-type]


PASSED = a_report(
    a_result("EAGER-1", Status.PASS),
    a_result("PACING-1", Status.PASS, profile="pacing"),
    a_result("LOOPS-1", Status.NOT_CLAIMED, profile="loops"),
)
FAILED = a_report(
    a_result("EAGER-1", Status.PASS),
    a_result("EAGER-2", Status.FAIL),
    a_result("HALT-2", Status.NOT_TESTABLE),
    a_result("HALT-3", Status.WARN, since=None),
    a_result("PACING-1", Status.PASS, profile="pacing"),
    a_result("LOOPS-1", Status.NOT_CLAIMED, profile="loops"),
)
UNTRIED = a_report(
    a_result("EAGER-1", Status.PASS),
    a_result("PACING-1", Status.NOT_TRIED, profile="pacing"),
    a_result("PACING-2", Status.PASS, profile="pacing"),
)
INTERRUPTED = a_report(
    a_result("EAGER-1", Status.PASS), checks=93, interrupted=True, running=("LOAD-1", "TASK-3")
)


class TestExitStatus:
    """What a run means for whoever started it."""

    @pytest.mark.parametrize(
        ("report", "status"),
        [
            (PASSED, 0),
            (FAILED, 1),
            (UNTRIED, 0),
            (a_report(a_result("EAGER-1", Status.NOT_TRIED)), 1),
            (a_report(), 1),
            (a_report(a_result("LOOPS-1", Status.NOT_CLAIMED, profile="loops")), 1),
            (a_report(a_result("EAGER-1", Status.WARN)), 0),
            (a_report(a_result("EAGER-1", Status.NOT_TESTABLE)), 1),
            (a_report(a_result("EAGER-1", Status.ERROR), a_result("EAGER-2", Status.FAIL)), 2),
            (a_report(a_result("EAGER-1", Status.PASS), error=Finding(message="gone")), 2),
            (INTERRUPTED, 130),
        ],
    )
    def test_only_a_run_in_which_something_passed_and_nothing_failed_is_a_success(
        self, report: Report, status: int
    ) -> None:
        """No check run, an error: none of them is a success."""
        assert report.exit_status == status


class TestTerminal:
    """The text."""

    def test_a_failure_says_all_that_is_known(self) -> None:
        """Clause, expected, actual, usual causes, timeline, and the line that reruns it."""
        text = report_text(FAILED)
        block = text[text.index("FAIL  EAGER-2") : text.index("NOT TESTABLE  HALT-2")]
        assert block.splitlines()[:13] == [
            "FAIL  EAGER-2  Title of EAGER-2.",
            "  core",
            "  clause    contract: Advancing; spec 3.2",
            "  what      what is wrong in EAGER-2",
            "  expected  one request",
            "            with the run's id",
            "  actual    two requests",
            "  usual causes",
            "    1. the host calls advance() twice",
            "    2. the lock is released too early",
            "  timeline",
            "      0.100  kit       open flow-1",
            "      1.250  probe     reach",
        ]
        assert (
            "  rerun     python -m flowactions_conformance run mypkg.testing:make_host --check EAGER-2" in block
        )

    def test_of_a_long_timeline_the_newest_moments_are_shown(self) -> None:
        """With how many there were before, and what the host has logged meanwhile."""
        timeline = tuple(
            Moment(at=float(at), source="kit", text=f"moment {at}") for at in range(SHOWN_MOMENTS + 2)
        )
        finding = Finding(message="late", actual="late", logged=("queue is full",))
        failed = a_result("EAGER-1", Status.FAIL, finding=finding, timeline=timeline)
        lines = report_text(a_report(failed)).splitlines()
        start = lines.index("  timeline")
        assert lines[start - 2 : start] == ["  the host logged meanwhile", "    queue is full"]
        assert lines[start + 1 : start + 3] == ["    … 2 earlier", "      2.000  kit       moment 2"]
        assert sum("  kit       moment" in line for line in lines) == SHOWN_MOMENTS
        assert "  actual" not in "\n".join(lines)

    def test_each_profile_has_one_line_and_what_is_not_claimed_is_not_proved(self) -> None:
        """Nobody takes a profile that was skipped for one that passed."""
        lines = report_text(FAILED).splitlines()
        for name in PROFILES:
            assert sum(line.startswith(f"{name:<12}") for line in lines) == 1
        assert "core        FAIL  1 passed, 1 failed, 1 with a warning, 1 not testable" in lines
        assert "pacing      PASS  1 passed" in lines
        assert "loops       not claimed, and so not proved" in lines
        assert "tenancy     not claimed, and so not proved" in lines
        assert "Not claimed, and so not proved: loops, editing," in lines[-1]
        assert "provisional: it will be required by a later contract" in report_text(FAILED)

    @pytest.mark.parametrize(
        ("report", "said"),
        [
            (PASSED, "PROVED for contract 1.0: core, pacing (2 checks)"),
            (FAILED, "NOT PROVED: 1 failed, 1 not testable, 1 with a warning of 5 checks"),
            (UNTRIED, "PROVED for contract 1.0, 1 check not tried: core (2 checks)"),
            (msgspec.structs.replace(PASSED, selected=True), "PASSED: 2 selected checks. Only a run of all"),
            (INTERRUPTED, "INTERRUPTED after 1 of 93 checks, while LOAD-1, TASK-3 ran: nothing is proved"),
            (
                a_report(a_result("LOOPS-1", Status.PASS, profile="loops"), lacks=("branch", "subflow")),
                "PROVED for contract 1.0: loops without branches and sub-flows (1 checks)",
            ),
            (a_report(), "NOT PROVED: no check ran"),
            (a_report(error=Finding(message="x")), "ERROR: no check ran, so nothing is known"),
        ],
    )
    def test_the_verdict_claims_no_more_than_was_shown(self, report: Report, said: str) -> None:
        """A selection proves nothing, and neither does an empty run."""
        assert headline(report).startswith(said)

    def test_colours_only_when_asked_and_no_controls_from_a_host(self) -> None:
        """What a host says cannot move the cursor."""
        hostile = a_report(a_result("EAGER-1", Status.FAIL, title=HOSTILE), host=HOSTILE, output=HOSTILE)
        plain = report_text(hostile)
        assert not {each for each in plain if each != "\n" and not each.isprintable()}
        assert "\x1b[1;31mFAIL" in report_text(hostile, coloured)
        assert "\x1b[2J" not in report_text(hostile, coloured)


class TestFiles:
    """``report.json``, and its schema."""

    @pytest.mark.parametrize(
        "report", [FAILED, INTERRUPTED, a_report(error=Finding(message=HOSTILE), output=HOSTILE)]
    )
    def test_the_json_says_what_follows(self, report: Report, tmp_path: Path) -> None:
        """The report can be read again, whatever a host says; beside it stand the verdict and all profiles."""
        write_report(report, tmp_path / "new" / "folder")
        written = (tmp_path / "new" / "folder" / "report.json").read_bytes()
        assert msgspec.json.decode(written, type=Report).results == report.results
        found = json.loads(written)
        assert (found["schemaVersion"], found["exitStatus"]) == (1, report.exit_status)
        assert [each["name"] for each in found["profiles"]] == list(PROFILES)

    def test_it_says_what_was_tested(self) -> None:
        """Distributions, interpreter, platform and database, each with its version; the seed, and the date."""
        tested = {"host": "shop 4.2", "python": "CPython 3.13, Linux", "database": "SQLite 3"}
        report = a_report(a_result("EAGER-1", Status.PASS), tested=tested, seed=4711)
        for said in (*tested.values(), "4711", report.started_at):
            assert said in report_text(report)


@pytest.mark.ci
async def test_a_timeline_tells_what_the_host_sent() -> None:
    """Requests that arrived and messages that were posted are in it, each at its time among what else happened."""
    make_host = "flowactions_conformance.reference_host.testing:make_host"
    report = await run_checks(make_host, ["EAGER-5", "EAGER-9"])
    timelines = {each.id: each.timeline for each in report.results}
    assert {moment.source for moment in timelines["EAGER-5"]} == {"kit", "host", "probe", "receiver"}
    assert any("/order, signed, event evt_" in moment.text for moment in timelines["EAGER-5"])
    assert any(moment.source == "provider" for moment in timelines["EAGER-9"])
    for timeline in timelines.values():
        assert [moment.at for moment in timeline] == sorted(moment.at for moment in timeline)
