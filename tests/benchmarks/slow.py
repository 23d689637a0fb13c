"""What receivers of one organization that answer late cost another: the time from enqueue to arrival beside them, and alone.

    python -m tests.benchmarks.slow [--database sqlite postgres] [--after 3 9] [--receivers 10] [--rows 100] [--rate 10]
        [--seconds 30] [--rounds 1] [--json]

One organization has so many due rows for each of its receivers, which answer after so many seconds. The rest is as in `hanging`.
"""

from __future__ import annotations

import logging

from tests.benchmarks.field import a_parser, machine, show
from tests.benchmarks.hanging import beside


def main() -> None:
    """Measure and print."""
    parser = a_parser(__doc__, receivers=10, rows=100, rate=10.0, seconds=30.0, rounds=1)
    parser.add_argument("--after", type=float, nargs="+", default=[3.0, 9.0], help="default: 3 9")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    given = {name: getattr(options, name) for name in ("rows", "rate", "seconds")}
    figures = {
        f"{after:g}_s": {"receivers": options.receivers, "after": after, **given} for after in options.after
    }
    alone = {"alone": {"receivers": 0, **given}}
    found = beside(options.database, options.rounds, {**alone, **figures})
    show({"rate_per_s": options.rate, "machine": machine(), **found}, as_json=options.json)


if __name__ == "__main__":
    main()
