"""Starts what a served host is made of, each a process as an operator starts it: `serve-env`, uvicorn, and nginx before it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from flowactions_conformance.kit.hand_over import ServedAt, read_environment

ROOT = Path(__file__).parents[2]
DRIVER = "flowactions_conformance.reference_host.served:make_driver"
APP = "flowactions_conformance.reference_host.served:make_app"
SAFETY_SECONDS = 300
NAP_SECONDS = 0.05

NGINX = """
daemon off;
user root;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  gzip on;
  gzip_types application/json application/problem+json text/plain;
  client_max_body_size {body};
  proxy_next_upstream {again};
  upstream host {{ {servers} }}
  server {{
    listen 127.0.0.1:{port};
    location /flows/ {{
      proxy_pass http://host/;
      proxy_set_header Host $http_host;
    }}
  }}
}}
"""


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@contextmanager
def serve_env(folder: Path, url: str, *options: str) -> Iterator[ServedAt]:
    """`serve-env` until the block is left; gives the environment that it writes."""
    file = folder / "served.env"
    command = [sys.executable, "-m", "flowactions_conformance", "serve-env", "--url", url, "--file", str(file)]
    with process([*command, *options], os.environ, folder / "serve-env.log") as running:
        until(lambda: (folder / "serve-env.log").read_text().endswith("Ctrl+C.\n"), running)
        yield read_environment(file)
        running.send_signal(signal.SIGINT)
        assert running.wait(SAFETY_SECONDS) == 0
    assert not file.exists()


@contextmanager
def host(folder: Path, environ: Mapping[str, str], port: int, workers: int = 1) -> Iterator[None]:
    """The reference host under uvicorn, until the block is left."""
    with process(uvicorn(port, workers), {**os.environ, **environ}, folder / "host.log") as running:
        until(lambda: serves(url_of(port)), running)
        yield


def uvicorn(port: int, workers: int) -> list[str]:
    """Return the command by which the reference host is served."""
    options = ["--port", str(port), "--workers", str(workers), "--log-level", "warning"]
    return [sys.executable, "-m", "uvicorn", "--factory", APP, *options]


@contextmanager
def nginx(
    folder: Path, port: int, to: int, *, body: str = "4m", again: str = "error timeout", entries: int = 1
) -> Iterator[str]:
    """A real nginx before the host, until the block is left; gives the URL below which the host is."""
    if shutil.which("nginx") is None:
        assert os.environ.get("CI") != "true", "in CI the host behind nginx must be tested: install nginx-light"
        pytest.skip("there is no nginx on this machine")
    own = folder / "nginx"
    own.mkdir(exist_ok=True)
    # Without max_fails=0, an answer with an error would make nginx answer all requests itself for ten seconds.
    servers = f"server 127.0.0.1:{to} max_fails=0; " * entries
    text = NGINX.format(folder=own, port=port, body=body, again=again, servers=servers)
    (own / "nginx.conf").write_text(text)
    command = ["nginx", "-c", str(own / "nginx.conf"), "-e", str(own / "error.log")]
    url = f"{url_of(port)}/flows"
    with process(command, os.environ, own / "output.log") as running:
        until(lambda: serves(url), running)
        yield url


def serves(url: str) -> bool:
    """Whether a host answers for its plugin there."""
    try:
        answer = httpx.get(f"{url}/integrations/health/live", trust_env=False, timeout=SAFETY_SECONDS)
    except httpx.TransportError:
        return False
    return answer.status_code == 200


@contextmanager
def process(command: list[str], environ: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with a group of its own, and what it starts, until the block is left."""
    with log.open("wb") as output:
        running = subprocess.Popen(
            command, cwd=ROOT, env={**environ}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield running
    finally:
        end(running.pid, signal.SIGTERM)
        try:
            running.wait(SAFETY_SECONDS)
        finally:
            end(running.pid, signal.SIGKILL)


def end(group: int, number: signal.Signals) -> None:
    """Send a signal to a group of processes, if it is still there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


def lives(group: int) -> bool:
    """Whether a process of a group runs; one that only waits for its parent to ask for its status does not."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            return True
    return False


def until(holds: object, running: subprocess.Popen[bytes]) -> None:
    """Wait until something holds, or the process has ended, which is a failure."""
    assert callable(holds)
    for _ in range(round(SAFETY_SECONDS / NAP_SECONDS)):
        if holds():
            return
        assert running.poll() is None, f"{running.args!r} has ended with status {running.returncode}"
        time.sleep(NAP_SECONDS)
    raise AssertionError(f"not within {SAFETY_SECONDS} s")
