from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.queueing import Queue, a_schedule


class TestWorker:
    async def test_a_tick_takes_no_more_than_the_limit(self, queue: Queue) -> None:
        """Fifty rows a tick by default, here two (§8)."""
        for _ in range(5):
            await queue.put()
        claims = a_schedule(queue, lambda request: httpx.Response(204), limit=2)
        assert [await claims.tick() for _ in range(4)] == [2, 2, 1, 0]

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (
                ConnectionResetError(104, "reset"),
                "the connection to 127.0.0.1:80 broke: it reset the connection",
            ),
            (httpx.DecodingError("not gzip"), "the connection to 127.0.0.1:80 broke: the network failed"),
            (httpx.ConnectTimeout("10 s"), "cannot connect to 127.0.0.1:80: it did not answer"),
            (httpx.ReadError(""), "the connection to 127.0.0.1:80 broke: the network failed"),
        ],
    )
    async def test_a_transports_network_error_is_an_outcome(
        self, queue: Queue, error: Exception, said: str
    ) -> None:
        """A failure of the network is a failed attempt, in whatever form the transport tells it; the words are ours."""
        row_id = await queue.put()

        def fail(request: httpx.Request) -> httpx.Response:
            raise error

        await a_schedule(queue, fail).tick()
        row = await queue.row(row_id)
        assert (row.status, row.attempts) == ("retrying", 1)
        assert row.last_error == said

    async def test_large_bodies_delay_no_small_ones_of_their_tick(self, queue: Queue) -> None:
        """Whatever a claim leaves for the next because it is large: small rows behind it come with the first (§8)."""
        large = [await queue.put(body=b"x" * (1 << 20), max_attempts=1) for _ in range(17)]
        small = [await queue.put(body=b"{}", max_attempts=1) for _ in range(3)]
        seen: list[int] = []
        all_small = asyncio.Event()

        async def answer(request: httpx.Request) -> httpx.Response:
            if len(request.content) > 2:
                await all_small.wait()
            seen.append(len(request.content))
            if seen.count(2) == len(small):
                all_small.set()
            return httpx.Response(200)

        assert await a_schedule(queue, answer).tick() == len(large) + len(small)
        assert seen[: len(small)] == [2] * len(small)
        assert [(await queue.row(each)).status for each in (*large, *small)] == ["delivered"] * 20
