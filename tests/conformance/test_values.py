"""Values are drawn by kind: a seed repeats them, and each run has one of each kind."""

from __future__ import annotations

import json
import unicodedata

import pytest

from flowactions_conformance.kit.outcomes import Status
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.kit.values import IDS, TEXTS, Values
from tests.conformance.faulty import app, driver, factory_of


def test_a_seed_repeats_its_values() -> None:
    """And another one draws others."""
    first, again, other = (Values(seed).config() for seed in ("1/EDIT-5", "1/EDIT-5", "2/EDIT-5"))
    assert first == again != other
    assert json.loads(json.dumps(first)) == first


@pytest.mark.parametrize("seed", range(20))
def test_each_kind_is_drawn_in_every_run(seed: int) -> None:
    """Each is what it says, whatever the seed."""
    values = Values(str(seed))
    users, texts = dict(values.users()), dict(values.texts())
    assert users.keys() == IDS.keys()
    assert texts.keys() == TEXTS.keys()
    assert len(values.runs()) == len(TEXTS)
    assert users["digits with leading zeros"] != str(int(users["digits with leading zeros"]))
    assert users["capitals"] != users["capitals"].lower()
    assert unicodedata.normalize("NFC", users["Unicode, decomposed"]) != users["Unicode, decomposed"]
    assert unicodedata.normalize("NFD", users["Unicode, composed"]) != users["Unicode, composed"]
    assert all(len(user) <= 200 for user in users.values())
    keys = set(values.config())
    for sign in (".", "/", " ", "_", "-", "$"):
        assert any(sign in key for key in keys)


def test_a_check_says_which_kinds_it_covers() -> None:
    """The groups of kinds, each by one check at least."""
    assert {group for check in all_checks() for group in check.covers} == {
        "users",
        "texts",
        "configs",
        "headers",
    }


async def test_the_report_names_the_seed() -> None:
    """So do the commands that run a check again, which draw the same values."""
    make_host = "flowactions_conformance.reference_host.testing:make_host"
    report = await run_checks(make_host, ["EDIT-5"], seed=7)
    assert report.seed == 7
    assert report.results[0].rerun.endswith("--check EDIT-5 --seed 7")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("method", "check"),
    [
        ("fail_commit", "DURABILITY-3"),
        ("fail_database", "METHODS-5"),
        ("fail_auth_event", "INBOUND-2"),
    ],
)
async def test_a_driver_that_does_nothing_proves_nothing(method: str, check: str) -> None:
    """What it should have made fail is not testable, and the message says that nothing failed."""
    nothing = driver(
        f"{method}-does-nothing",
        "",
        f"async def {method}(",
        f"async def {method}(*_): pass\n\n    async def _(",
    )
    report = await run_checks(factory_of(nothing), [check])
    (result,) = report.results
    assert result.status is Status.NOT_TESTABLE
    assert result.finding is not None
    assert "has no effect" in result.finding.message
    assert not report.passed


LIMITED = 'json_answer(429, b"slow down") if asked.path.startswith("/v1/webhooks") else None'
"""An answer to what the preflight does not need."""


async def test_one_cause_is_one_failure() -> None:
    """The other checks that meet it are not tried, and name the one that failed."""
    limited = app("limited", "", f"around(made.app, refuse=lambda asked: {LIMITED})")
    report = await run_checks(factory_of(limited), ["AUTH-1", "HTTP-9", "AUTH-6", "TENANCY-1"])
    states = [result.status for result in report.results]
    assert sorted(states) == [Status.FAIL, *[Status.NOT_TRIED] * 3]
    failed = next(result for result in report.results if result.status is Status.FAIL)
    said = [result.finding.message for result in report.results if result.finding is not None]
    assert sum(f"because of what {failed.id} says" in message for message in said) == 3
