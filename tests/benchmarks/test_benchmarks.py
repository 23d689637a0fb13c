"""The benchmarks run and say what they promise; how fast is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def printed(module: str, *arguments: str) -> dict[str, Any]:
    """Run a benchmark, and read the one JSON object on its standard output."""
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    # "joined" is a difference of two medians, which may be anything when little is measured.
    measured = [value for name, value in found.items() if "joined" not in name]
    assert all(value > 0 for value in measured if isinstance(value, float))
    return found


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_deliver(database: str) -> None:
    """Every row is delivered once, which the benchmark itself checks."""
    found = printed("deliver", "--database", database, "--rows", "300", "--destinations", "3", "--seconds", "1")
    assert found.keys() >= {
        "deliveries_per_s",
        "ceiling_per_s",
        "ratio",
        "p50_ms",
        "p95_ms",
        "p99_ms",
        "peak_rss_mib",
    }
    assert ("apart_p99_ms" in found) == (database == "postgres")


@pytest.mark.parametrize(
    ("module", "arguments", "keys"),
    [
        ("scale", ("--workers", "2", "--rows", "300"), {"workers_2_per_s"}),
        ("enqueue", ("--count", "256"), {"sqlite_bare_64_p50_ms", "postgres_joined_8_p99_ms"}),
        ("upgrade", ("--rows", "2000"), {"sqlite_seconds", "postgres_seconds", "postgres_locks"}),
        (
            "start",
            ("--rounds", "1", "--seconds", "0.1", "--database", "sqlite", "postgres"),
            {"help_to_floor", "sqlite_worker_peak_rss_mib", "postgres_host_import_ms"},
        ),
        ("node", ("--count", "20"), {"sqlite_webhook_p50_ms", "postgres_chat_p99_ms"}),
    ],
)
def test_the_others(module: str, arguments: tuple[str, ...], keys: set[str]) -> None:
    """They end, and print their figures."""
    assert printed(module, *arguments).keys() >= keys
