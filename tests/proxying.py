"""Forward proxies on loopback: one that tunnels and forwards, and refuses what a test says; and a real squid."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.loopback import held_port, listening
from tests.waiting import until

Decide = Callable[[str], bytes | None]
"""Given a request line: what the proxy answers itself; ``None``: it lets the request through."""

OPENED = b"HTTP/1.1 200 Connection established\r\n\r\n"

SILENT = b"silent"
"""For a proxy that says nothing."""


class Proxy:
    """What was asked of it, and how it decides.

    Args:
        leads_to: the port to which every host leads.
    """

    def __init__(self, leads_to: int = 0) -> None:
        self.url = ""
        self.leads_to = leads_to
        self.asked: list[str] = []
        self.decide: Decide = lambda line: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, or connect it to where it leads."""
        head = await reader.readuntil(b"\r\n\r\n")
        line = head.split(b"\r\n", 1)[0].decode()
        self.asked.append(line)
        answer = self.decide(line)
        if answer is SILENT:
            await reader.read()
            return
        if answer is not None:
            writer.write(answer)
            await writer.drain()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self.leads_to)
        if line.startswith("CONNECT"):
            writer.write(OPENED)
        else:
            back.write(head)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(pumped(reader, back))
                both.create_task(pumped(there, writer))
        finally:
            back.close()


@asynccontextmanager
async def proxying(leads_to: int = 0) -> AsyncIterator[Proxy]:
    """Run a proxy on a free loopback port."""
    proxy = Proxy(leads_to)
    async with listening(proxy.serve) as port:
        proxy.url = f"http://ada:s3cret@127.0.0.1:{port}"
        yield proxy


async def pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carry bytes one way until they end."""
    while part := await reader.read(65536):
        writer.write(part)
        await writer.drain()
    writer.close()


SQUID = """
http_port 127.0.0.1:{port}
pid_filename none
access_log none
cache_log {folder}/squid.log
cache_store_log none
coredump_dir none
cache_mem 0 MB
memory_pools off
workers 1
shutdown_lifetime 0 seconds
connect_timeout 1 seconds
forward_max_tries 1
hosts_file {folder}/hosts
dns_nameservers 127.0.0.1
dns_timeout 1 seconds
visible_hostname proxy.example
acl refused dstdomain refused.example
http_access deny refused
{access}
"""

PASSWORD = """
auth_param basic program /bin/sed -u -e s/ada.{password}/OK/ -e t -e s/.*/ERR/
auth_param basic children 1 startup=1
acl known proxy_auth REQUIRED
http_access allow known
http_access deny all
"""


def squid_program() -> str:
    """Return the path of squid; the test is skipped where it is missing, but not in CI."""
    found = shutil.which("squid", path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        assert os.environ.get("CI") != "true", "in CI this must run: install squid"
        pytest.skip("there is no squid on this machine")
    return found


@asynccontextmanager
async def squid(*names: str, password: str | None = None, access: str = "") -> AsyncIterator[str]:
    """Run a real squid on loopback, to which some names are this machine; give its URL.

    Args:
        names: that lead to 127.0.0.1.
        password: what it asks for, if it does.
        access: further lines of its configuration.
    """
    program = squid_program()
    with tempfile.TemporaryDirectory(dir="/tmp") as made, held_port() as port:
        folder = Path(made)
        folder.chmod(0o777)  # as root, squid becomes another user, who cannot enter a private directory
        (folder / "hosts").write_text("".join(f"127.0.0.1 {name}\n" for name in names))
        access += "\nhttp_access allow all" if password is None else PASSWORD.format(password=password)
        (folder / "squid.conf").write_text(SQUID.format(port=port, folder=folder, access=access))
        process = await asyncio.create_subprocess_exec(
            program,
            "-N",
            "-f",
            str(folder / "squid.conf"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )

        async def answers() -> bool:
            assert process.returncode is None, (folder / "squid.log").read_text()
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        try:
            await until(answers)
            yield f"http://127.0.0.1:{port}"
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
