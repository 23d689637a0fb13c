"""Whom receivers that are slow or hang delay, by the rules of lanes alone, on a clock of their own (§8)."""

from __future__ import annotations

import pytest

from flowactions_plugin.egress.attempt import DEADLINE_SECONDS
from tests.lane_simulation import NEVER, Simulation
from tests.rings import sampled

SOON = 0.1
"""Seconds from enqueue to begin, at the most, where nobody has to wait for a slow receiver."""

QUICK = 0.005
"""Seconds that a quick receiver takes."""


def test_a_hook_that_hangs_of_each_of_150_tenants_delays_no_other_tenant() -> None:
    """Neither one whose receiver has answered before, nor a new one."""
    sim = Simulation()
    sim.enqueue("fine", QUICK, rows=600, rate=10)
    for number in range(150):
        sim.enqueue(f"hung {number}", NEVER, rows=20, at=5)
    sim.enqueue("new", QUICK, rows=10, rate=1, at=30)
    sim.run(60)
    assert sim.longest("fine", "new") <= SOON


@pytest.mark.parametrize("seconds", [3.0, 9.0, NEVER])
def test_slow_receivers_of_one_tenant_delay_no_other(seconds: float) -> None:
    """Ten of them, with a backlog; and they have three quarters of the slots if they answer."""
    sim = Simulation()
    sim.enqueue("fine", QUICK, rows=600, rate=10)
    for number in range(10):
        sim.enqueue("slow", seconds, host=f"slow {number}", rows=200, at=5)
    sim.run(60)
    assert sim.longest("fine") <= SOON
    assert sim.most["slow"] == (10 if seconds == NEVER else 75)


@pytest.mark.parametrize("hosts", [1, 10])
def test_a_receiver_that_is_quick_now_and_then_counts_as_slow(hosts: int) -> None:
    """It answers at once and after nine seconds by turns. Ten that have been quick once may take all slots, but only once."""
    sim = Simulation()
    sim.enqueue("fine", QUICK, rows=600, rate=10)
    for number in range(hosts):
        sim.enqueue("slow", lambda row: (QUICK, 9.0)[row % 2], host=f"slow {number}", rows=400, at=5)
    sim.run(15)
    sim.waits.clear()
    sim.most.clear()
    sim.run(45)
    assert sim.longest("fine") <= SOON
    assert sim.most["slow"] == min(75, 10 * hosts)


def test_a_worker_that_starts_knows_what_hangs_from_the_others() -> None:
    """150 that hang among 1,000 tenants with a row each: none of the other 850 waits for these, and no new one."""
    sim = Simulation()
    sim.standing.begin_with({f"tenant {number}": {f"tenant {number}": 0} for number in range(0, 1000, 7)})
    for number in range(1000):
        sim.enqueue(f"tenant {number}", QUICK if number % 7 else NEVER, rows=1 if number % 7 else 20)
    sim.enqueue("new", QUICK, rows=20, rate=1, at=5)
    sim.run(30)
    assert sim.longest(*(f"tenant {number}" for number in range(1000) if number % 7)) <= 0.5
    assert sim.longest("new") <= SOON


def test_a_worker_that_knows_nothing_finds_out_once() -> None:
    """The first row of some tenants then waits for slots that hang: 13 of 100 a deadline are left to them. No later one does."""
    sim = Simulation()
    fine = [f"tenant {number}" for number in range(1000) if number % 7]
    for number in range(1000):
        sim.enqueue(f"tenant {number}", QUICK if number % 7 else NEVER, rows=1 if number % 7 else 20)
    sim.run(5 * DEADLINE_SECONDS)
    assert sim.longest(*fine) <= 5 * DEADLINE_SECONDS
    sim.waits.clear()
    for number, name in enumerate(fine):
        sim.enqueue(name, QUICK, rows=3, rate=1, at=sim.now + number / len(fine))
    sim.enqueue("new", QUICK, rows=20, rate=1)
    sim.run(30)
    assert sim.longest("new", *fine) <= SOON


@pytest.mark.parametrize("takes", [9.0, NEVER], ids=["slow", "hangs"])
def test_a_new_path_for_each_row_makes_no_new_receiver(takes: float) -> None:
    """What is known of its host holds for each, so that unknown lanes of other tenants have their slots."""
    sim = Simulation()
    for number in range(10):
        sim.enqueue("ids", takes, host=f"host {number}", path=lambda row: f"id/{row}", rows=500)
    sim.run(20)
    sim.most.clear()
    for number in range(30):
        sim.enqueue(f"new {number}", QUICK, at=sim.now + number)
    sim.run(40)
    assert sim.longest(*(f"new {number}" for number in range(30))) <= SOON
    assert sim.most["ids"] <= 75


@sampled("hosts", [1, 10, 5_000], size=1)
def test_5_000_lanes_of_one_row(hosts: int) -> None:
    """They are delivered as fast as their limits allow, and delay nobody."""
    sim = Simulation()
    sim.enqueue("fine", QUICK, rows=100, rate=20)
    sim.run(1)
    for number in range(5_000):
        sim.enqueue("ids", 10 * QUICK, host=f"host {number % hosts}", path=f"id/{number}")
    sim.run(5_000 * 10 * QUICK / min(90, 10 * hosts) * 1.5)
    assert sim.ended["ids"] == 5_000
    assert sim.longest("fine") <= SOON
