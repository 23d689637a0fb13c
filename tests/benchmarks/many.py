"""What hooks of many organizations that hang cost another: the time from enqueue to arrival beside them, and alone.

    python -m tests.benchmarks.many [--database sqlite postgres] [--organizations 150] [--rows 20] [--rate 10] [--seconds 40]
        [--rounds 1] [--json]

Each of so many organizations has due rows for a receiver of its own that never answers. Arrivals count from the twelfth second on:
the worker knows nothing when it starts, and until then no attempt has timed out. The rest is as in `hanging`.
"""

from __future__ import annotations

import logging

from tests.benchmarks.field import a_parser, machine, show
from tests.benchmarks.hanging import beside


def main() -> None:
    """Measure and print."""
    options = a_parser(__doc__, organizations=150, rows=20, rate=10.0, seconds=40.0, rounds=1).parse_args()
    logging.disable(logging.INFO)
    given = {"rows": options.rows, "rate": options.rate, "seconds": options.seconds, "own": True, "skip": 12.0}
    figures = {"alone": {"receivers": 0, **given}, "beside": {"receivers": options.organizations, **given}}
    found = beside(options.database, options.rounds, figures)
    show({"rate_per_s": options.rate, "machine": machine(), **found}, as_json=options.json)


if __name__ == "__main__":
    main()
