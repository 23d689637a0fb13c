"""The page of the conformance kit's checks, made from its registry: ``python -m tests.docs.checks --write``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from flowactions_conformance.kit.registry import PROFILES, Check, all_checks
from tests.docs import generated

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "conformance.md"
COMMAND = "python -m tests.docs.checks --write"
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
    """Makes the page."""
    return "\n".join(_lines()).rstrip() + "\n"


def _lines() -> Iterator[str]:
    checks = all_checks()
    yield "# Checks of the conformance kit"
    yield ""
    yield (
        f"The checks of `python -m flowactions_conformance run`: {len(checks)} checks in {len(PROFILES)} profiles. [Prove your\n"
        "host](../how-to/prove-your-host.md) says how to run them and how to read the result. This page is generated:\n"
        f"`{COMMAND}`."
    )
    yield ""
    yield (
        "A check without a note is required since contract 1.0: if it fails, the host fails. A check that this version of the\n"
        "contract does not require yet (provisional) warns. The last column names the sections that the check follows from: of\n"
        "[the contract](contract.md), of [the HTTP page](http.md), or of [the behaviour pages](behaviour/README.md) (*spec*).\n"
        "The report of a failed check has its usual causes. A check with ¹ is not tried on a host that is already served."
    )
    for profile in PROFILES:
        mine = [check for check in checks if check.profile == profile]
        if mine:
            yield from (
                "",
                f"## {profile}",
                "",
                ABOUT[profile],
                "",
                "| check | requirement | follows from |",
                "|---|---|---|",
            )
            yield from map(_row, mine)


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
    sys.exit(generated.run(COMMAND, __doc__, PAGE, render))
