"""What receivers that flood cost a healthy one.

    python -m tests.benchmarks.floods [--database postgres|sqlite] [--rate 50] [--seconds 7] [--json]

Ten deliveries are in flight to receivers that send without a pause, each from a process of its own: interim responses, a
header that does not end, a body in chunks of one byte. Meanwhile another destination gets webhooks at a steady rate.
Printed is the time from reaching the node to arrival there, for each kind of flood and for ten receivers that say
nothing, and how long the longest attempt took.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import func, select

from flowactions_plugin.storage.schema import attempts
from tests.benchmarks.deliver import printed_by
from tests.benchmarks.field import ROOT, a_database, fill, machine, opened, percentile, settings_of, show
from tests.benchmarks.sink import sink
from tests.waiting import until

FLOODING = 10

KINDS = {
    "silent": ("", ""),
    "continue": ("", "HTTP/1.1 100 Continue\r\n\r\n"),
    "early_hints": ("", "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "headers": ("HTTP/1.1 200 OK\r\n", "x: y\r\n"),
    "one_header": ("HTTP/1.1 200 OK\r\nx: ", "y"),
    "chunks": ("HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
    "chunk_extension": ("HTTP/1.1 500 Oops\r\ntransfer-encoding: chunked\r\n\r\n1;", "x"),
}
"""By name what is sent first, and then without end."""

RECEIVER = """
import socket, sys, threading
first, part = (each.encode() for each in sys.argv[1:])
server = socket.create_server(("127.0.0.1", 0), backlog=100)
print(server.getsockname()[1], flush=True)
def answer(connection):
    try:
        connection.recv(65536)
        connection.sendall(first)
        while part:
            connection.sendall(part * 1000)
        connection.recv(65536)
    except OSError:
        pass
while True:
    threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()
"""


@contextmanager
def flooding(kind: str) -> Iterator[list[str]]:
    """Run receivers of one kind; give their URLs."""
    command = [sys.executable, "-c", RECEIVER, *KINDS[kind]]
    processes: list[subprocess.Popen[str]] = []
    try:
        processes.extend(
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(FLOODING)
        )
        yield [f"http://127.0.0.1:{int(each.stdout.readline())}/flood" for each in processes if each.stdout]
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def beside(kind: str, database: str, rate: float, seconds: float) -> dict[str, float]:
    """Measure the time to arrival at a healthy destination beside receivers of one kind."""
    async with sink() as (receiver, arrivals):
        with ExitStack() as stack:
            url = stack.enter_context(a_database(database))
            receivers = stack.enter_context(flooding(kind))
            await fill(url, FLOODING, receivers)
            reached = await asyncio.to_thread(
                printed_by,
                "steady",
                {**settings_of(url), "FLOWACTIONS_HOST_WORKER": "on"},
                *("--url", receiver, "--rate", str(rate), "--seconds", str(seconds)),
            )
            await until(lambda: reached.keys() <= arrivals.keys(), seconds=300)
            async with opened(url) as opened_database, opened_database.read() as connection:
                longest = (await connection.execute(select(func.max(attempts.c.duration_ms)))).scalar_one()
    took = [(arrivals[path] - at) * 1000 for path, at in reached.items()]
    return {
        f"{kind}_p50_ms": percentile(took, 0.5),
        f"{kind}_p99_ms": percentile(took, 0.99),
        f"{kind}_longest_attempt_s": (longest or 0) / 1000,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--rate", type=float, default=50, help="webhooks a second to the healthy destination")
    parser.add_argument("--seconds", type=float, default=7, help="how long; a flooding attempt lives for ten")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {"database": options.database, "machine": machine()}
    for kind in options.kinds:
        found |= asyncio.run(beside(kind, options.database, options.rate, options.seconds))
    show(found, as_json=options.json)


if __name__ == "__main__":
    main()
