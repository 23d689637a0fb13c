from __future__ import annotations

import asyncio

import httpx

from tests.queueing import PATIENT, Queue, a_schedule


class TestWorker:
    async def test_a_tick_takes_no_more_than_the_limit(self, queue: Queue) -> None:
        """Fifty rows a tick by default, here two (§8)."""
        for _ in range(5):
            await queue.put()
        claims = a_schedule(queue, lambda request: httpx.Response(204), limit=2)
        assert [await claims.tick() for _ in range(4)] == [2, 2, 1, 0]

    async def test_large_bodies_delay_no_small_ones_of_their_tick(self, queue: Queue) -> None:
        """Whatever a claim leaves for the next because it is large: small rows behind it come with the first (§8)."""
        queue = Queue(queue.database, PATIENT)
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
