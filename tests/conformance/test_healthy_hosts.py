"""No healthy host is blamed: each passes all that it claims, however odd or slow it is."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

import pytest

from flowactions_conformance.kit.outcomes import Report, Status
from flowactions_conformance.kit.registry import all_checks, select
from flowactions_conformance.kit.runner import run_checks

HOSTS = {
    "reference": "flowactions_conformance.reference_host.testing:make_host",
    "fastapi": "tests.conformance.hosts.fastapi_host:make_host_of_its_own",
    "odd": "tests.conformance.hosts.odd_host:make_host",
    "odd-ids": "tests.conformance.hosts.odd_ids_host:make_host",
    "slow": "tests.conformance.hosts.slow_host:make_host",
    "single": "tests.conformance.hosts.single_host:make_host",
    "mounted": "tests.conformance.hosts.mounted_host:make_host",
    "flask": "tests.conformance.hosts.flask_host:make_host",
    "template": "flowactions_conformance.commands.host_template:make_host",
}


class Combination(NamedTuple):
    """A host, its database, and the checks, groups or profiles that are tried."""

    host: str
    database: str
    names: tuple[str, ...]


LONG = {"SCALE-1", "SCALE-4"}
"""Checks that take ten seconds or more: they start and kill many processes, or wait until leases end."""

OVER_OTHER_HOSTS = {"core", "pacing", "loops"}
"""Profiles that the README's ring runs over other hosts than the reference host."""

README = [
    Combination(
        "reference",
        "sqlite",
        tuple(each.id for each in all_checks() if each.profile not in OVER_OTHER_HOSTS and each.id not in LONG),
    ),
    Combination("template", "sqlite", ("core",)),
    Combination("flask", "postgresql", ("pacing", "loops")),
]
"""Those of the README's ring: each check that is not long, once."""

CI = [
    Combination(
        "reference",
        "postgresql",
        ("EAGER", "DURABILITY-3", "SCALE-2", *sorted(LONG)),
    ),
    Combination("fastapi", "sqlite", ("MODEL-2", "PACING-4", "TASK-3")),
    Combination("odd", "sqlite", ("HTTP", "MODEL-2", "PACING-4", "PACING-6", "PACING-11")),
    Combination(
        "odd-ids",
        "sqlite",
        ("AUTH", "HTTP-12", "MODEL-1", "SAVING", "LOGIC", "TENANCY", "DURABILITY-3"),
    ),
    Combination("slow", "sqlite", ("LOGIC-1", "LOGIC-7", "METHODS-1", "METHODS-4", "PACING-5")),
    Combination("single", "sqlite", ("AUTH", "METHODS", "EAGER-9")),
    Combination("flask", "sqlite", ("MODEL-4", "SAVING", "METHODS", "DURABILITY-3")),
    Combination("mounted", "postgresql", ("EDIT", "HTTP", "LOAD", "TASK-1")),
]
"""Each further host with the checks that concern what is special about it; with the ones above, each check."""


def blamed(report: Report) -> list[str]:
    """Returns what a report says against a host, a line for each result that is no success."""
    against = [] if report.error is None else [f"the run: {report.error.message}"]
    for result in report.results:
        if result.status not in {Status.PASS, Status.NOT_CLAIMED}:
            said = "" if result.finding is None else f"{result.finding.message}: {result.finding.actual}"
            against.append(f"{result.id} {result.status}: {said}")
    return against


@pytest.mark.parametrize(
    "combination",
    [*README, *(pytest.param(each, marks=pytest.mark.ci) for each in CI)],
    ids=lambda each: "-".join(each[:2]),
)
def test_the_kit_blames_no_healthy_host(combination: Combination, request: pytest.FixtureRequest) -> None:
    """It passes what is tried without a warning."""
    server = request.getfixturevalue("postgres_server") if combination.database == "postgresql" else None
    logging.disable(logging.INFO)  # thousands of lines, among which nobody finds what is blamed
    try:
        report = asyncio.run(run_checks(HOSTS[combination.host], combination.names, server=server))
    finally:
        logging.disable(logging.NOTSET)
    assert blamed(report) == []
    assert report.passed
    passed = {each.id for each in report.results if each.status is Status.PASS}
    assert passed == {each.id for each in select(combination.names) if each.profile in report.claims}


def test_the_short_version_has_everything_once() -> None:
    """Each host and check is among those that `.ci/run` tries, and each check but the long ones in the README's ring."""
    tried = [*README, *CI]
    assert {each.host for each in tried} == set(HOSTS)
    assert {check for each in tried for check in select(each.names)} == set(all_checks())
    assert {check for each in README for check in select(each.names)} == {
        check for check in all_checks() if check.id not in LONG
    }


@pytest.mark.ci
async def test_ids_that_are_not_allowed_are_one_failure() -> None:
    """The plugin refuses such an id wherever it comes: one check says so, and none of each other kind blames the host for it."""
    firsts = {each.id.partition("-")[0]: each.id for each in reversed(all_checks()) if each.id not in LONG}
    report = await run_checks(
        "tests.conformance.hosts.odd_ids_host:with_slashes", [*firsts.values(), "HTTP-12"]
    )
    assert report.error is None
    assert [each.id for each in report.results if each.status in {Status.FAIL, Status.ERROR}] == ["HTTP-12"]


@pytest.mark.ci
async def test_a_host_that_repeats_is_not_blamed_if_its_driver_does_not_count() -> None:
    """Nobody can tell whether a commit has failed: nothing is proved of it, and nothing is said against the host."""
    report = await run_checks("tests.conformance.hosts.odd_ids_host:without_count", ["DURABILITY-3"])
    (result,) = report.results
    assert result.status is Status.NOT_TRIED
    assert result.finding is not None
    assert "write failed_commits() of the driver" in result.finding.message
