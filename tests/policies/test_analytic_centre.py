"""The analytic centre: a point without slope of the barrier, on random programs; the same for rates that differ by rounding."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.cluster import Floats
from fairlead.core.columns import significant
from fairlead.policies.allocation.lp import analytic_centre
from fairlead.policies.allocation.lp.analytic_centre import LAST_MU, centre


def random_program(seed: int) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Members, workers and weight of classes, capacity, and gain; some classes cannot run on some types."""
    rng = np.random.default_rng(seed)
    classes, types = int(rng.integers(1, 40)), int(rng.integers(1, 6))
    gain = np.exp(rng.normal(0.0, 1.0, (classes, types)))
    gain[rng.random(gain.shape) < 0.2] = 0.0
    gain[gain.max(axis=1) == 0, 0] = 1.0
    count, workers = rng.integers(1, 9, classes), rng.choice([1, 1, 2, 4], classes)
    return count, workers, rng.choice([0.5, 1.0, 3.0], classes), rng.integers(1, 60, types), gain


@pytest.mark.parametrize("seed", range(40))
def test_no_direction_improves_the_barrier(seed: int) -> None:
    count, workers, weight, capacity, gain = random_program(seed)
    x = centre(count, workers, weight, capacity, gain)
    assert (x[gain == 0] == 0).all()
    scaled = gain / weight[:, None]
    scaled = significant(scaled / scaled.max(axis=1).min())
    time, left = 1.0 - x.sum(axis=1), capacity - (count * workers) @ x
    assert min(x[gain > 0].min(), time.min(), left.min()) > 0
    # The level at which the slope by t is nothing, by bisection; at the least speed the sum is infinite.
    speed = (scaled * x).sum(axis=1)
    high = float(speed.min())
    low = high - LAST_MU * float(count.sum())
    for _ in range(200):
        t = 0.5 * (low + high)
        low, high = (t, high) if LAST_MU * float((count / (speed - t)).sum()) < 1.0 else (low, t)
    parts = [
        scaled * (LAST_MU / (speed - t))[:, None],
        -(LAST_MU / time)[:, None] * np.ones(x.shape),
        -workers[:, None] * (LAST_MU / left)[None, :],
        np.divide(LAST_MU, x, out=np.zeros_like(x), where=gain > 0),
    ]
    largest = np.max([np.abs(part) for part in parts], axis=0)
    assert (np.abs(sum(parts)) / largest)[gain > 0].max() < 1e-6


def test_the_last_bits_of_rates_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    for seed in range(40):
        *program, gain = random_program(seed)
        noise = 1.0 + 1e-15 * rng.integers(-1, 2, gain.shape)
        assert centre(*program, gain).tobytes() == centre(*program, gain * noise).tobytes()


def test_few_steps_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[int]()
    system = analytic_centre._NewtonSystem

    def counted(*given: object) -> analytic_centre._NewtonSystem:
        steps[-1] += 1
        return system(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(analytic_centre, "_NewtonSystem", counted)
    for seed in range(40):
        steps.append(0)
        centre(*random_program(seed))
    assert np.median(steps) <= 20
    assert max(steps) <= 40
