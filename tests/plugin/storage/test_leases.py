"""A lease that is renewed while its block runs, by a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from flowactions_plugin.errors import LeaseLost, StorageUnavailable
from flowactions_plugin.storage.leases import renewing


class Jumping(asyncio.SelectorEventLoop):
    """A loop whose time passes only while it has nothing to do, and then at once."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def block(renew: Callable[[float], Awaitable[bool]], seconds: float) -> tuple[str, float]:
    """Run a block of so many seconds under a lease of 15 that is renewed every 5; return how and when it ended."""

    async def main() -> tuple[str, float]:
        clock = asyncio.get_running_loop().time
        try:
            async with renewing(lambda: renew(clock()), 15, 5):
                await asyncio.sleep(seconds)
        except LeaseLost:
            return "lost", clock()
        return "ended", clock()

    with asyncio.Runner(loop_factory=Jumping) as runner:
        return runner.run(main())


def answering(*answers: object) -> Callable[[float], Awaitable[bool]]:
    """Return a renewal that answers this in turn, and then the last again; an error is raised."""
    left = list(answers)

    async def renew(_: float) -> bool:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    return renew


AWAY = StorageUnavailable("away")


@pytest.mark.parametrize(
    ("answers", "seconds", "ended"),
    [
        ((True,), 4, ("ended", 4)),
        ((True,), 100, ("ended", 100)),  # each renewal moves the end
        ((True, AWAY, True), 100, ("ended", 100)),
        ((True, AWAY), 100, ("lost", 20)),  # the renewal at 5 holds until 20
        ((AWAY,), 9, ("ended", 9)),
        ((AWAY,), 100, ("lost", 10)),  # nobody knows how long ago it was taken
        ((True, True, LeaseLost()), 100, ("lost", 15)),
        ((False,), 9, ("ended", 9)),  # about to return
        ((True, False), 100, ("lost", 15)),  # and no longer than that
    ],
)
def test_a_block_runs_while_nobody_else_can_have_its_lease(
    answers: tuple[object, ...], seconds: float, ended: tuple[str, float]
) -> None:
    """Renewed, or at least not expired; one with nothing left has the time of one renewal."""
    assert block(answering(*answers), seconds) == ended


def test_a_block_that_has_ended_is_not_lost() -> None:
    """Not even if the lease ends while a renewal that hangs is cancelled."""

    async def renew(_: float) -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(60)  # a driver that asks its server to cancel a statement
        return True

    assert block(renew, 9) == ("ended", 69)


def test_an_error_of_the_block_passes() -> None:
    """A TimeoutError of its own is not a lost lease."""

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with renewing(lambda: answering(True)(0), 15, 5):
                raise TimeoutError

    with asyncio.Runner(loop_factory=Jumping) as runner:
        runner.run(main())
