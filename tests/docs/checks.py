"""The table of the conformance kit's checks, made from its registry: ``python -m tests.docs.checks`` prints it.

The site has it below its page on the checks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from flowactions_conformance.kit.registry import PROFILES, Check, all_checks

ABOUT = {
    "core": "What every host does: it loads the plugins, its editor gets them, the routes answer, deliveries are sent.",
    "pacing": "Flows in which the end user goes from step to step.",
    "loops": "Flows that reach a node several times in a run: loops, and flows within flows.",
    "editing": "An author sees what is wrong with a config before it is saved, and what it would send.",
    "logic": "Triggers, fired by a customer's backend or by the host.",
    "tenancy": "Several organizations in one host.",
    "durability": "What survives a restart, a killed process and a transaction that is rolled back.",
    "inbound": "Events of an auth provider.",
    "scale": "Several processes of one host.",
}


def render() -> str:
    """Make a table for each profile."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    for profile in PROFILES:
        mine = [check for check in all_checks() if check.profile == profile]
        if mine:
            yield from (f"### {profile}", "", ABOUT[profile], "")
            yield from ("| check | requirement | follows from |", "|---|---|---|", *map(_row, mine), "")


def _row(check: Check) -> str:
    notes = [] if check.since == "1.0" else [f"since contract {check.since}" if check.since else "provisional"]
    if check.covers:
        notes.append(f"draws {', '.join(sorted(check.covers))}")
    if check.served not in {"no", "shared"}:
        notes.append(f"already served: only if the driver has `{check.served}`")
    note = f" ({'; '.join(notes)})" if notes else ""
    mark = " ¹" if check.served == "no" else ""
    return f'| <a id="{check.id.lower()}"></a>{check.id}{mark} | {_cell(check.title)}{note} | {_cell(check.clause)} |'


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Keeps text from being read as markup; what stands in backticks is code already."""
    parts = text.split("`")
    escaped = [
        part
        if number % 2
        else part.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
        for number, part in enumerate(parts)
    ]
    return "`".join(escaped)


if __name__ == "__main__":
    sys.stdout.write(render())
