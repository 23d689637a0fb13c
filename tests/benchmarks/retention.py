"""What retention costs the deliveries beside it: queues are drained while old rows are removed, and without, in turns.

    python -m tests.benchmarks.retention [--database sqlite postgres] [--old 200000] [--rows 10000] [--rounds 5] [--json]

All drains have the same old rows in the table; in every second one they are old enough to be removed. Prints for each
database the median of the rounds' ratios of the rates, and the lowest and the highest of them; how many old rows were
removed while the queue was drained, and how many that is a second, as medians; and the rates themselves.
"""

from __future__ import annotations

import logging
from typing import Any

from tests.benchmarks.comparison import Load, compare_loads
from tests.benchmarks.field import a_parser, machine, show
from tests.benchmarks.revisions import this_tree

DESTINATIONS = 10


def measure(kind: str, old: int, rows: int, rounds: int) -> dict[str, Any]:
    """Give rates with and without retention, their ratio, and what was removed.

    Raises:
        RuntimeError: all old rows were gone before the queue was drained, or none was removed.
    """
    beside, without = (
        Load(kind, rows, DESTINATIONS, 1, 0.0, {"FLOWACTIONS_RETENTION_DAYS": days}, old)
        for days in ("30", "365")
    )
    found = compare_loads(this_tree(None), beside, without, "without_", rounds)
    removed, rate = found["removed"], found["deliveries_per_s"]
    if not 0 < removed < old:
        raise RuntimeError(f"{removed:,.0f} of {old:,} old rows were removed while the queue was drained")
    return {
        f"{kind}_ratio": found["rate_ratio"],
        f"{kind}_ratio_spread": found["rate_ratio_spread"],
        f"{kind}_worker_ratio": found["worker_ratio"],
        f"{kind}_database_ratio": found["database_ratio"],
        f"{kind}_removed": removed,
        f"{kind}_removed_per_s": removed * rate / rows,
        f"{kind}_per_s": rate,
        f"{kind}_without_per_s": found["without_deliveries_per_s"],
    }


def main() -> None:
    """Measure and print."""
    options = a_parser(__doc__, old=200_000, rows=10_000, rounds=5).parse_args()
    logging.disable(logging.INFO)
    found: dict[str, Any] = {"old": options.old, "rows": options.rows, "machine": machine()}
    for kind in options.database:
        found |= measure(kind, options.old, options.rows, options.rounds)
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
