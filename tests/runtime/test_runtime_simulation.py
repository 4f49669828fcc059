"""The runtime under faults, on a virtual clock: each seed is another cluster, other jobs and other faults."""

from __future__ import annotations

import pytest

pytest.importorskip("greenlet", reason="the simulation of the runtime needs greenlet")

from fairlead.testing.runtime_simulation.scenario import run_scenario

SEEDS, AT_ONCE = 200, 20


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_the_rules_hold_whatever_fails(first: int) -> None:
    broken = [f"seed {seed}: {found}" for seed in range(first, first + AT_ONCE) if (found := run_scenario(seed).violation)]
    assert not broken


def test_a_seed_gives_the_same_run_every_time() -> None:
    one, other = run_scenario(7), run_scenario(7)
    assert one.log == other.log
    assert (one.events, one.commands, one.faults) == (other.events, other.commands, other.faults)


def test_a_run_without_faults_ends_all_jobs() -> None:
    calm = run_scenario(3, [])
    assert calm.violation == ""
    assert any("is acknowledged" in text for _, _, text in calm.log)
