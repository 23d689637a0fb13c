"""What one webhook passes in the plugin's code, from ``reach`` until it is delivered.

    python -m tests.benchmarks.passage [--database sqlite postgres] [--count 5] [--json]

``functions``, ``files`` and ``records`` (types of structs, dataclasses and named tuples that were given or returned) are
those that each of the webhooks passed, so that what a background part did meanwhile is left out. ``insert_stops``: functions
of the plugin that stand above the statement which writes the row, in the task that runs it and in the one that waits for it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import msgspec
from sqlalchemy.engine import Connection

import flowactions_plugin
from flowactions_hookspecs import FlowActions, Node
from tests.benchmarks.field import on_each_database
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

PLUGIN = str(Path(flowactions_plugin.__file__).parent)


def is_record(kind: type) -> bool:
    """Whether a type of the plugin's holds fields and little else."""
    holds = issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    return holds and kind.__module__.startswith("flowactions_plugin")


class Passed:
    """The functions and records that were seen since it was made."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()
        self.records: set[type] = set()
        self.waiting: list[str] = []
        self.insert: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code is Connection.execute.__code__ and not self.insert:
            text = getattr(frame.f_locals.get("statement"), "text", "")
            if "INSERT INTO flowactions_outbox" in text:
                self.insert = list(dict.fromkeys([*self.waiting, *stack(frame)]))
        if not code.co_filename.startswith(PLUGIN) or event not in {"call", "return"}:
            return
        self.codes.add(code)
        values = [argument] if event == "return" else frame.f_locals.values()
        self.records.update(type(value) for value in values if is_record(type(value)))
        above = stack(frame) if event == "call" and not self.insert else []
        if above and above[0].endswith(".reach"):
            self.waiting = above


def stack(frame: FrameType | None) -> list[str]:
    """Give the functions of the plugin in a frame and above it, the outermost first."""
    found: list[str] = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PLUGIN):
            found.insert(0, frame.f_code.co_qualname)
        frame = frame.f_back
    return found


def has_finished(host: SmallHost, count: int) -> bool:
    """Whether so many webhooks have ended."""
    return len(host.finished) >= count


async def measure(url: str, count: int) -> dict[str, Any]:
    """Give the numbers, and the functions above the INSERT."""
    host = SmallHost(development(url, FLOWACTIONS_DELIVERY="continuous"))
    found = [Passed()]

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        found[-1](frame, event, argument)

    threading.setprofile(profile)  # SQLite's statements run in a thread that opens with the database
    sys.setprofile(profile)
    try:
        async with recorder() as receiver, (actions := FlowActions.load(host)).lifespan():
            node = Node(id="n", type="webhook", config={"webhookUrl": receiver.url, "webhookBody": "{}"})
            for number in range(count + 1):  # the first one opens and compiles what stays
                found.append(Passed())
                await actions.reach(a_walk(), node)
                await until(partial(has_finished, host, number + 1))
                found.append(Passed())
                await asyncio.sleep(0.1)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = found[3:-1:2]
    codes = set.intersection(*(each.codes for each in found))
    records = set.intersection(*(each.records for each in found))
    return {
        "functions": len(codes),
        "files": len({code.co_filename for code in codes}),
        "records": len(records),
        "insert_stops": len(found[-1].insert),
        "insert": " > ".join(found[-1].insert),
        "record_names": " ".join(sorted(kind.__name__ for kind in records)),
    }


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)  # where a development host writes its key
        on_each_database(__doc__, measure, count=5)


if __name__ == "__main__":
    main()
