"""Values are drawn by kind: a seed repeats them, and each run has one of each kind."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest

from flowactions_conformance.kit.outcomes import Status
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.kit.support.compare import difference
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


def texts_in(change: Callable[[str], Any], value: Any) -> Any:
    """Change each text in a JSON value."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [texts_in(change, each) for each in value]
    return {key: texts_in(change, each) for key, each in value.items()} if isinstance(value, dict) else value


def typed(text: str) -> Any:
    """Take a text for what formats read in it."""
    return {"true": True, "null": None}.get(text, int(text) if text.isdigit() else text)


def rewritten(config: dict[str, Any], **options: Any) -> Any:
    """Write a config as JSON, and read it in another way."""
    return json.loads(json.dumps(config), **options)


CHANGES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "digits": ("users", lambda user: str(int(user)) if user.isdigit() else user, ""),
    "letter case": ("users", str.lower, ""),
    "a name for nobody": ("users", lambda user: user or "anonymous", "not ''"),
    "ends": ("texts", str.strip, "blanks at its begin or end were changed"),
    "form": ("texts", lambda text: unicodedata.normalize("NFC", text), "it was normalized: Unicode NFC"),
    "length": ("texts", lambda text: text[:1000], "it was cut after 1000"),
    "much length": ("texts", lambda text: text[:16_000], "it was cut after 16000 of 20000"),
    "line ends": ("texts", lambda text: text.replace("\r\n", "\n"), "its line ends were changed"),
    "planes": ("texts", lambda text: re.sub("[^\u0000-\uffff]", "?", text), ""),
    "JSON": ("texts", lambda text: json.dumps(json.loads(text)) if text[:1] in "{[" and text else text, ""),
    "dots of keys": ("config", lambda held: {key.replace(".", "_"): each for key, each in held.items()}, " is missing"),
    "letters of keys": ("config", lambda held: {key[:1].lower() + key[1:]: each for key, each in held.items()}, " is missing"),
    "times": ("config", lambda held: texts_in(lambda text: re.sub(r"(:\d\d)Z$", r"\1+00:00", text), held), "not '2030-01-31T09:30:00Z'"),
    "types": ("config", lambda held: texts_in(typed, held), ", not '"),
    "numbers": ("config", lambda held: rewritten(held, parse_int=lambda digits: int(float(digits))), " is 9"),
    "emptiness": ("config", lambda held: rewritten(held, object_hook=lambda each: {k: v for k, v in each.items() if v not in ({}, [])}), "is missing; it was "),
    "lists of one": ("config", lambda held: {k: v[0] if isinstance(v, list) and len(v) == 1 and isinstance(v[0], str) else v for k, v in held.items()}, ", not ["),
}  # fmt: skip
"""What hosts do to values → of which values, how, and a part of what is said of it."""


@pytest.mark.parametrize(("of", "change", "said"), CHANGES.values(), ids=CHANGES)
def test_what_hosts_do_to_values_is_seen_in_each_run(of: str, change: Callable[[Any], Any], said: str) -> None:
    """Whatever the seed: one value of each kind at least is another one then, and the difference has words."""
    for seed in range(20):
        values = Values(str(seed))
        drawn = [values.config()] if of == "config" else [each for _, each in getattr(values, of)()]
        told = [difference(each, change(each)) for each in drawn]
        assert any(said in each for each in told if each is not None), (seed, told)


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
        "A method of the driver does nothing.",
        check,
        "has no effect",
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
    limited = app(
        "limited", "Requests are limited.", "", "", f"around(made.app, refuse=lambda asked: {LIMITED})"
    )
    report = await run_checks(factory_of(limited), ["AUTH-1", "HTTP-9", "AUTH-6", "TENANCY-1"])
    states = [result.status for result in report.results]
    assert sorted(states) == [Status.FAIL, *[Status.NOT_TRIED] * 3]
    failed = next(result for result in report.results if result.status is Status.FAIL)
    said = [result.finding.message for result in report.results if result.finding is not None]
    assert sum(f"because of what {failed.id} says" in message for message in said) == 3
