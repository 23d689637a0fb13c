"""The benchmarks run; how fast is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_deliver() -> None:
    """The benchmark that decides about every change ends, has delivered each row once, and prints its figures."""
    arguments = ("--json", "--database", "sqlite", "--rows", "300", "--destinations", "3", "--seconds", "1")
    command = [sys.executable, "-m", "tests.benchmarks.deliver", *arguments]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() >= {"deliveries_per_s", "ceiling_per_s", "ratio", "p50_ms", "p99_ms", "peak_rss_mib"}
    assert all(value > 0 for value in found.values() if isinstance(value, float)), found
