"""What a host must pass for a version of the contract: a frozen list, so that no upgrade makes a passing host fail.

A check that is written after a version was released has ``since=None``: it warns until the next version. Run
``python -m flowactions_conformance.kit.requirements --write`` when the next version is made; a test compares.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from flowactions_conformance.kit.registry import Check, all_checks
from flowactions_conformance.kit.runner import CONTRACT
from flowactions_conformance.kit.under_test import Wire

FILE: Final = Path(__file__).parent / "requirements.json"
COMMAND: Final = "python -m flowactions_conformance.kit.requirements --write"


class Requirement(Wire, frozen=True):
    """What is frozen of a required check.

    Args:
        profile: whose hosts must pass it.
        title: what must hold; another title is another requirement.
        since: the contract's version that required it first.
    """

    profile: str
    title: str
    since: str


class Requirements(Wire, frozen=True):
    """All of a version.

    Args:
        contract: the version.
        required: check id → what is frozen.
    """

    contract: str
    required: dict[str, Requirement]


def required_now(checks: Sequence[Check]) -> dict[str, Requirement]:
    """Return what these checks require of a host."""
    return {
        check.id: Requirement(profile=check.profile, title=check.title, since=check.since)
        for check in checks
        if check.fails_hosts() and check.since is not None
    }


def frozen() -> Requirements:
    """Return what the file says."""
    return msgspec.json.decode(FILE.read_bytes(), type=Requirements)


def differences(now: Mapping[str, Requirement], then: Requirements) -> list[str]:
    """Return what was removed, added or changed since the list was frozen, one line each."""
    said = []
    for id_ in sorted({*now, *then.required}):
        new, old = now.get(id_), then.required.get(id_)
        if new is None:
            said.append(f"{id_} was required by contract {then.contract}, and is not any more")
        elif old is None:
            said.append(f"{id_} is new: with since=None it warns until the next version of the contract")
        elif new != old:
            said.append(f"{id_} required {old}, and requires {new} now")
    return said


def _text() -> str:
    made = Requirements(contract=CONTRACT, required=required_now(all_checks()))
    return msgspec.json.format(msgspec.json.encode(made), indent=2).decode() + "\n"


def main() -> int:
    """Run the command; give its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flowactions_conformance.kit.requirements")
    parser.add_argument("--write", action="store_true", help="freeze what the checks require now")
    if parser.parse_args().write:
        FILE.write_text(_text(), encoding="utf-8")
        return 0
    said = differences(required_now(all_checks()), frozen())
    sys.stdout.write("".join(f"{line}\n" for line in said))
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
