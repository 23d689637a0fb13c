"""Transports beside each other: no response is another's."""

from __future__ import annotations

import asyncio

from flowactions_plugin.egress.attempt import Progress
from flowactions_plugin.egress.connection import Connection
from flowactions_plugin.egress.pool import Pool
from tests.recorder import OK, status


async def test_what_is_read_is_kept_by_transport_and_not_by_connection() -> None:
    """What one transport has read stays while another one reads; the connections of one share their buffer."""
    clock = asyncio.get_running_loop().time
    pools = Pool(2, clock), Pool(2, clock)
    first, beside, other = (Connection("key", "where", pool) for pool in (pools[0], *pools))
    reading = [
        asyncio.create_task(each.request(b"GET / HTTP/1.1\r\n\r\n", b"", Progress(), head_only=False))
        for each in (first, other)
    ]
    await asyncio.sleep(0)
    assert first.get_buffer(-1) is beside.get_buffer(-1)
    # As of two event loops, each of which reads before either takes what it has read.
    for each, answer in ((first, OK), (other, status(500))):
        each.get_buffer(-1)[: len(answer)] = answer
    first.buffer_updated(len(OK))
    other.buffer_updated(len(status(500)))
    async with asyncio.timeout(300):
        assert [each.status_code for each in await asyncio.gather(*reading)] == [200, 500]
