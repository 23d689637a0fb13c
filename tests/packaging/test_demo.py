from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.ci

DEMO = [sys.executable, "-m", "flowactions_conformance.demo"]
SAFETY_SECONDS = 300


def test_once_reports_every_step_and_succeeds(tmp_path: Path) -> None:
    """`flowactions-demo --once` names delivery, status, signature, channel and ts, and exits 0."""
    done = subprocess.run(
        [*DEMO, "--once"], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=SAFETY_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        len(re.findall(r"webhook [\w-]+: delivery [0-9a-f-]{36} delivered, signature verified", done.stdout))
        == 4
    )
    assert "called again with the same key: nothing is enqueued" in done.stdout
    assert "the host has handled it once, and acknowledged it twice" in done.stdout
    assert len(re.findall(r"chat [\w-]+: #orders has the message, ts \d+\.\d{6}", done.stdout)) == 2
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []


def test_once_fails_when_the_provider_refuses(tmp_path: Path) -> None:
    """A static token that the provider does not know ends with exit status 1 and the reason."""
    environment = {
        **os.environ,
        "CHAT_BOT_TOKEN": "xoxb-nobody",
        "CHAT_API_URL": "http://127.0.0.1:1/api/",
    }
    done = subprocess.run(
        [*DEMO, "--once", "--channel", "C1"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
        timeout=SAFETY_SECONDS,
    )
    assert done.returncode == 1
    assert "FAILED: the install ended at" in done.stdout
    assert "reason=unreachable" in done.stdout
    assert "xoxb-nobody" not in done.stdout + done.stderr


def test_it_prints_pages_that_work_and_stops_when_asked(tmp_path: Path) -> None:
    """Without --once every printed page answers, and an interrupt ends it cleanly."""
    process = subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl+C" in line:
                break
        assert lines[0].startswith("Starting ")
        pages, _, command = "".join(lines).partition("Trigger")
        urls = re.findall(r"http://127\.0\.0\.1:\d+/\S*", pages)
        assert len(urls) == 8
        for url in urls:
            assert httpx.get(url, timeout=SAFETY_SECONDS, follow_redirects=True).status_code == 200
        program, _, url, *rest = shlex.split(
            command[command.index("curl") : command.index("Press")].replace("\\\n", " ")
        )
        options = list(zip(rest[::2], rest[1::2], strict=True))
        headers = dict(value.split(": ", 1) for option, value in options if option == "-H")
        (data,) = [value for option, value in options if option == "-d"]
        statuses = [
            httpx.post(url, headers=headers, content=data, timeout=SAFETY_SECONDS).status_code for _ in range(2)
        ]
        assert (program, statuses) == ("curl", [202, 204])
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SAFETY_SECONDS)
    assert process.returncode == 0
    assert errors == ""
