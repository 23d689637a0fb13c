"""What the page on watching says is what happens, in processes of their own: OpenTelemetry's global providers are set once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flowactions_plugin.telemetry import names

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "watch.md").read_text()

EXPORTERS = """
exported = []

from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

def OTLPMetricExporter():
    return ConsoleMetricExporter(formatter=written)

def written(data):
    exported.append("metrics " + data.to_json(indent=None) + "\\n")
    return exported[-1]

def OTLPSpanExporter():
    return ConsoleSpanExporter(formatter=lambda span: "span " + span.to_json(indent=None) + "\\n")
"""
"""In place of those that need a collector."""

RUN = """
import asyncio
from opentelemetry import metrics
from flowactions_hookspecs import FlowActions, Node
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development
from tests.waiting import until

async def main(folder, awaited=None):
    host = SmallHost(development(f"sqlite:///{folder}/f.db"))
    actions = FlowActions.load(host)
    async with recorder() as receiver, actions.lifespan():
        await actions.reach(a_walk(), Node(id="n", type="webhook", config={"webhookUrl": receiver.url}))
        await until(lambda: host.finished)
        flush = getattr(metrics.get_meter_provider(), "force_flush", lambda: None)
        await asyncio.to_thread(flush)
        async with asyncio.timeout(300):
            # What is read of the database comes a moment after the start.
            while awaited and not any(awaited in each for each in exported):
                await asyncio.sleep(0.1)
                await asyncio.to_thread(flush)

import sys
asyncio.run(main(*sys.argv[1:]))
"""

FLUSH = """
metrics.get_meter_provider().shutdown()
trace.get_tracer_provider().shutdown()
"""


def blocks(heading: str) -> list[str]:
    """Give the Python examples under a heading."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def ran(code: str, folder: Path, *arguments: str) -> str:
    """Run a program; give what it printed."""
    (folder / "program.py").write_text(code)
    ended = subprocess.run(
        [sys.executable, "program.py", str(folder), *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_five_lines_configure_metrics_and_traces(tmp_path: Path) -> None:
    """With the page's own lines, and the console in place of a collector, a delivery is measured and traced."""
    (configured,) = blocks("Configure OpenTelemetry")
    lines = [line for line in configured.splitlines() if line and not line.startswith("from ")]
    assert len(lines) <= 5
    local = re.sub(r"from opentelemetry\.exporter\.otlp.*\n", "", configured)
    printed = ran(EXPORTERS + local + RUN + FLUSH, tmp_path, names.VERDICT.name).splitlines()
    spans = [json.loads(line.removeprefix("span ")) for line in printed if line.startswith("span ")]
    assert {span["name"] for span in spans} == {"node webhook", "enqueue outbox", "POST"}
    text = "".join(line for line in printed if line.startswith("metrics "))
    assert names.ATTEMPTS.name in text
    assert names.VERDICT.name in text


@pytest.mark.ci
def test_without_configuration_nothing_is_printed(tmp_path: Path) -> None:
    """The API alone records nothing, and says nothing."""
    assert ran(RUN, tmp_path) == ""


@pytest.mark.ci
def test_log_records_become_json(tmp_path: Path) -> None:
    """With the page's formatter each line has its event."""
    (formatter,) = blocks("Logs")
    chosen = "logging.getLogger('flowactions').setLevel(logging.INFO)\n"
    failing = RUN.replace("receiver.url}", "'http://127.0.0.1:1/'}")
    lines = ran(formatter + chosen + failing, tmp_path).splitlines()
    events = {json.loads(line)["event"] for line in lines}
    assert "delivery.dead" in events
    assert None not in events
