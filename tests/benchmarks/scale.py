"""What more worker processes bring on one PostgreSQL.

python -m tests.benchmarks.scale [--workers 1 2 4] [--rows 20000] [--destinations 50] [--server BIN|URL] [--json]
"""

from __future__ import annotations

import argparse
import asyncio

from tests.benchmarks.field import a_database, a_receiver, add_server, drain, fill, machine, show


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--destinations", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    add_server(parser)
    options = parser.parse_args()
    found: dict[str, object] = {
        "rows": options.rows,
        "destinations": options.destinations,
        "machine": machine(),
    }
    for workers in options.workers:
        with a_receiver(options.destinations) as receivers, a_database("postgres") as url:
            asyncio.run(fill(url, options.rows, receivers))
            found[f"workers_{workers}_per_s"] = drain(url, options.rows, {}, workers).per_s
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
