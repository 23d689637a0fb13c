"""Starts Python programs quickly: a process that has imported everything forks one for each request.

``python -m tests.crash.zygote SOCKET`` listens there. A request names a module and brings three descriptors; the module is
run as ``python -m`` would run it, in a process of its own that can be stopped and killed as any other. The answer is its
process id and, once it has ended, its exit status. Starting an interpreter anew takes seconds of processor time, and tests
start hundreds. `tests.crash.forking` is the other side.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from typing import Any

PRELOADED = (
    "aiosqlite",
    "alembic.command",
    "asyncpg",
    "flowactions_conformance",
    "flowactions_conformance.serving",
    "flowactions_plugin.cli",
    "flowactions_plugin.cli.commands",
    "flowactions_plugin.cli.diagnosis",
    "flowactions_plugin.cli.context",
    "flowactions_plugin.egress.host_transport",
    "flowactions_plugin.plugin",
    "jinja2",
    "flowactions_plugin.routes",
    "slack_sdk.web.async_client",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "tests.crash.actor",
    "tests.crash.hosts",
    "tests.crash.timed_hosts",
)
REQUEST_BYTES = 1 << 20


class Zygote:
    """Takes requests, and tells how what was started has ended.

    Args:
        path: of the socket to listen at.
    """

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        self._ended, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        self._children: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> dict[str, Any] | None:
        """Fork until standard input is closed; give the request in each child, and ``None`` in the end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for source in (self._listener, self._ended, 0):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._ended in ready:
                os.read(self._ended, 4096)
                self._report()
            if self._listener in ready:
                request = self._fork()
                if request is not None:
                    return request
            if 0 in ready:
                return None

    def _fork(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        said, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 3)
        if not descriptors:  # somebody looks whether this process listens yet
            connection.close()
            return None
        while not said.endswith(b"\n"):
            said += connection.recv(REQUEST_BYTES)
        child = os.fork()
        if child == 0:
            connection.close()
            self._become_child(descriptors)
            request: dict[str, Any] = json.loads(said)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[child] = connection
        connection.sendall(b"%d\n" % child)
        return None

    def _become_child(self, descriptors: list[int]) -> None:
        """Close what is the parent's, and take the descriptors as standard input, output and error."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._listener.close()
        for connection in self._children.values():
            connection.close()
        os.close(self._ended)
        os.close(self._wake)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)

    def _report(self) -> None:
        for child in list(self._children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                with self._children.pop(child) as connection:
                    try:
                        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
                    except OSError:
                        continue  # nobody waits for it any more


def main() -> None:
    """Load what programs need, and serve; in a child, be the program that was asked for."""
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or each child's first collection, and its end, would copy what it shares with this process
    request = Zygote(sys.argv[1]).serve()
    if request is None:
        return
    os.chdir(request["cwd"])
    sys.path.insert(0, request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["module"], *request["arguments"]]
    warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
