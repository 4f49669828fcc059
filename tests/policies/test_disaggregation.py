"""A class's time, dealt out to its members: whatever can be met is met, and nothing is given twice."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.policies.allocation.lp.disaggregation import lifted, windows


def supply(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Speeds that fall, the time at each, and demands that they just majorise."""
    rng = np.random.default_rng(seed)
    speed = np.sort(rng.uniform(0.05, 1.0, int(rng.integers(1, 6))))[::-1]
    amount = rng.uniform(0.0, 3.0, len(speed))
    count = int(np.ceil(amount.sum())) + int(rng.integers(0, 4))
    demand = np.sort(rng.uniform(0.0, 1.0, count))[::-1]
    has = np.array([(np.maximum(speed - cut, 0.0) * amount).sum() + cut * np.arange(1, count + 1) for cut in (*speed, 0.0)])
    return speed, amount, demand * (has.min(axis=0) / demand.cumsum()).min()


@pytest.mark.parametrize("seed", range(40))
def test_demands_that_the_speeds_majorise_are_met(seed):
    speed, amount, demand = supply(seed)
    hash_fractions = windows(demand.tolist(), speed.tolist(), amount.tolist())
    time = np.array([[lot.get(piece, 0.0) for piece in range(len(speed))] for lot in hash_fractions])
    assert (time @ speed >= demand - 1e-9).all()
    assert (time.sum(axis=1) <= 1 + 1e-9).all()
    assert (time.sum(axis=0) <= amount + 1e-9).all()
    entries = np.count_nonzero(time > 1e-9)
    assert entries <= 2 * len(demand) + len(speed)  # two ways for each; others are used up by who crosses them


@pytest.mark.parametrize("seed", range(40))
def test_what_is_beyond_the_demands_lifts_the_least_of_them(seed):
    speed, amount, demand = supply(seed)
    demand = 0.6 * demand
    higher = np.array(lifted(demand.tolist(), speed.tolist(), amount.tolist()))
    assert (higher >= demand).all()
    level = higher.min()
    assert higher == pytest.approx(np.maximum(demand, level))
    hash_fractions = windows(higher.tolist(), speed.tolist(), amount.tolist())
    time = np.array([[lot.get(piece, 0.0) for piece in range(len(speed))] for lot in hash_fractions])
    assert (time @ speed >= higher - 1e-8).all()
    above = np.maximum(demand, level + 1e-6)  # no higher: somewhere it would be too much
    cuts = np.append(speed, 0.0)
    wanted = np.maximum(above[:, None] - cuts, 0.0).sum(axis=0)
    has = (np.maximum(speed[:, None] - cuts, 0.0) * amount[:, None]).sum(axis=0)
    assert (wanted > has - 1e-9).any() or level == pytest.approx(float(speed[0]))
