"""Whom receivers that are slow or hang delay, by the rules of lanes alone, on a clock of their own (§8)."""

from __future__ import annotations

import pytest

from tests.lane_simulation import NEVER, Simulation

SOON = 0.1
"""Seconds from enqueue to begin, at the most, where nobody has to wait for a slow receiver."""


@pytest.mark.xfail(strict=True, reason="each organization may begin one, whatever hangs")
def test_a_hook_that_hangs_of_each_of_150_tenants_delays_no_other_tenant() -> None:
    """Neither one whose receiver has answered before, nor a new one."""
    sim = Simulation()
    sim.enqueue("fine", 0.005, rows=600, rate=10)
    for number in range(150):
        sim.enqueue(f"hung {number}", NEVER, rows=20, at=5)
    sim.enqueue("new", 0.005, rows=10, rate=1, at=30)
    sim.run(60)
    assert sim.longest("fine", "new") <= SOON


@pytest.mark.xfail(strict=True, reason="an answer that comes late counts as quick")
@pytest.mark.parametrize("seconds", [3.0, 9.0])
def test_slow_receivers_of_one_tenant_delay_no_other(seconds: float) -> None:
    """Ten of them, with a backlog; and they have no more than three quarters of the slots."""
    sim = Simulation()
    sim.enqueue("fine", 0.005, rows=600, rate=10)
    for number in range(10):
        sim.enqueue("slow", seconds, host=f"slow {number}", rows=200, at=5)
    sim.run(60)
    assert sim.longest("fine") <= SOON
    assert sim.most["slow"] <= 75
