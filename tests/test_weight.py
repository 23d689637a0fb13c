"""What the project may weigh: `tests.docs.lint` fails above a number of these tables, and a tenth below it.

Who adds lines says what leaves. Who needs more room takes it from another room, in the same commit.
``python -m tests.test_weight`` prints what is there.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from flowactions_hookspecs import FlowActions
from tests.support import SmallHost, development
from tests.waiting import until

ROOT = Path(__file__).parents[1]


class Weight(NamedTuple):
    """What a folder holds.

    Attributes:
        python: lines of Python.
        other: lines of SQL, HTML, styles and scripts; what others wrote is not counted.
        files: of both kinds.
    """

    python: int
    other: int
    files: int


ROOMS: Final = {
    "flowactions_plugin/alerts": Weight(python=543, other=0, files=4),
    "flowactions_plugin/api": Weight(python=496, other=0, files=2),
    "flowactions_plugin/chat": Weight(python=3218, other=0, files=18),
    "flowactions_plugin/cli": Weight(python=2910, other=0, files=18),
    "flowactions_plugin/egress": Weight(python=2921, other=0, files=19),
    "flowactions_plugin/http": Weight(python=958, other=0, files=6),
    "flowactions_plugin/inbound": Weight(python=581, other=0, files=5),
    "flowactions_plugin/insights": Weight(python=3803, other=0, files=13),
    "flowactions_plugin/logic": Weight(python=458, other=0, files=4),
    "flowactions_plugin/nodes": Weight(python=2848, other=0, files=11),
    "flowactions_plugin/operations": Weight(python=1888, other=0, files=10),
    "flowactions_plugin/operators": Weight(python=146, other=0, files=3),
    "flowactions_plugin/pages": Weight(python=1443, other=1255, files=28),
    "flowactions_plugin/queue": Weight(python=5664, other=495, files=58),
    "flowactions_plugin/settings": Weight(python=637, other=0, files=5),
    "flowactions_plugin/storage": Weight(python=3475, other=0, files=17),
    "flowactions_plugin/telemetry": Weight(python=529, other=0, files=5),
    "flowactions_plugin/watch": Weight(python=1003, other=0, files=7),
    "flowactions_plugin/*": Weight(python=1276, other=0, files=12),
    "flowactions_plugin": Weight(python=34785, other=1750, files=245),
    "hookspecs": Weight(python=3331, other=0, files=26),
    "conformance": Weight(python=15462, other=2635, files=136),
    "tests": Weight(python=76732, other=130, files=429),
}
"""By folder with all below it, or with ``/*`` what stands directly in it."""

TEXTS: Final = {"words of docs": 75993, "decisions": 30, "lines of the changelog": 50, "longest decision": 32}

ROOM: Final = re.compile(r"flowactions_plugin/\w+")

LOOPS: Final = 4
"""Tasks that stay in a worker that does everything, on PostgreSQL."""

PASSAGE: Final = {"insert_stops": 13, "functions": 280, "files": 52, "records": 19}
"""What one webhook passes, on the database where it is more (`tests/benchmarks/passage.py`)."""

ADVICE: Final = "Above the budget: say what leaves. More than a tenth below it: lower the number in this file."


def tracked(pattern: str) -> list[Path]:
    """Return the files of the work tree that git tracks or would track; not what others wrote."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", f":(glob){pattern}"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if "/vendor/" not in name and (ROOT / name).exists()]


def lines(path: Path) -> int:
    """Count the lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def weigh(room: str) -> Weight:
    """Return the weight of a folder."""
    paths = tracked(room if room.endswith("/*") else f"{room}/**")
    python = [each for each in paths if each.suffix == ".py"]
    other = [each for each in paths if each.suffix in {".sql", ".html", ".css", ".js", ".mjs"}]
    return Weight(sum(map(lines, python)), sum(map(lines, other)), len(python) + len(other))


def texts() -> dict[str, int]:
    """Return what `TEXTS` bounds."""
    decisions = [each for each in tracked("docs/decisions/*.md") if re.match(r"\d", each.name)]
    return {
        "words of docs": sum(len(each.read_text(encoding="utf-8").split()) for each in tracked("docs/**/*.md")),
        "decisions": len(decisions),
        "lines of the changelog": lines(ROOT / "CHANGELOG.md"),
        "longest decision": max(map(lines, decisions)),
    }


def fits(found: int, budget: int) -> bool:
    """Whether a number is neither above its budget nor more than a tenth below it."""
    return 0.9 * budget <= found <= budget


def faults() -> Iterator[str]:
    """Say which rooms and texts do not fit their budget. Only git says which files count."""
    if not (ROOT / ".git").exists():
        return
    for room, budget in ROOMS.items():
        weight = weigh(room)
        if not all(map(fits, weight, budget)):
            yield f"{room}: {weight}, budget {budget}. {ADVICE}"
    for name, found in texts().items():
        if not fits(found, TEXTS[name]):
            yield f"{name}: {found}, budget {TEXTS[name]}. {ADVICE}"
    folders = {
        f"flowactions_plugin/{each.parent.name}" for each in (ROOT / "flowactions_plugin").glob("*/__init__.py")
    }
    # A new folder of the plugin is a decision.
    yield from (
        f"{each} has no budget, or is gone" for each in folders ^ {e for e in ROOMS if ROOM.fullmatch(e)}
    )


async def test_a_worker_has_so_many_background_loops(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that delivers continuously, sends alerts and pauses what fails."""
    monkeypatch.chdir(tmp_path)  # where a development host writes its key
    settings = development(
        postgres_url,
        FLOWACTIONS_DELIVERY="continuous",
        FLOWACTIONS_ALERTS_URL="http://127.0.0.1:9/alerts",
        FLOWACTIONS_ALERTS_SECRET="whsec_" + "c2VjcmV0" * 6,
        FLOWACTIONS_AUTO_PAUSE="20,30m",
    )
    others = asyncio.all_tasks()
    async with FlowActions.load(SmallHost(settings)).lifespan():
        staying: set[asyncio.Task[object]] = set()
        while (found := asyncio.all_tasks() - others) != staying:
            staying = found
            await asyncio.sleep(1)
        # What ends by itself is no loop, however long it takes.
        await until(lambda: len(staying & asyncio.all_tasks()) <= LOOPS)


@pytest.mark.ci
def test_a_webhook_passes_so_much(tmp_path: Path) -> None:
    """From the node to the receiver, on the database where it is more."""
    command = [sys.executable, "-m", "tests.benchmarks.passage", "--json", "--count", "6"]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)
    most = {name: max(found[f"sqlite_{name}"], found[f"postgres_{name}"]) for name in PASSAGE}
    assert all(fits(most[name], PASSAGE[name]) for name in PASSAGE), f"{most}, budget {PASSAGE}. {ADVICE}"


if __name__ == "__main__":
    for each in ROOMS:
        print(f'    "{each}": {weigh(each)},')
    print(texts())
