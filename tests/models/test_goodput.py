"""The model of a step that is fitted to what jobs tell, and the goodput that follows."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.models import speed_curves as speeds
from fairlead.models.convergence import converged_at, fit_losses
from fairlead.models.goodput import Goodputs, StepModel
from toy_applications import times


def seen(*configurations: tuple[int, int, int]) -> list[list[float]]:
    told = []
    for nodes, workers, local in configurations:
        step, sync = times(nodes, workers, local)
        told.append([nodes, workers, local, step - sync, step])
    return told


def goodputs(told: list[list[float]], var: float = 8.0) -> Goodputs:
    model = np.array([StepModel.of(told).to_data()])
    profiled = np.array([max(int(one[1]) for one in told)])
    return Goodputs(model, np.array([[1.0, var]]), np.array([[32.0, 512.0, 8.0, 128.0]]), profiled)


def test_a_model_foretells_what_it_has_not_seen():
    jobs = goodputs(seen((1, 1, 32), (1, 2, 32), (1, 4, 16), (2, 8, 16), (4, 16, 8), (2, 8, 64)))
    for nodes, workers in ((1, 3), (3, 12), (8, 32)):
        split = 256 / workers
        step = times(nodes, workers, np.ceil(split))[0]
        gain = (1 + 8) / (8 / 8 + 1)
        assert jobs.at_batch(np.array([256.0]), [workers], 4)[0, 0] == pytest.approx(gain / step, rel=0.03)


def test_a_model_that_has_seen_little_hopes():
    alone = goodputs(seen((1, 1, 32)))
    rate = [alone.at_batch(np.array([128.0]), [workers], 4)[0, 0] for workers in (1, 2, 4)]
    assert rate[0] < rate[1] < rate[2]
    beside = goodputs(seen((1, 1, 32), (1, 2, 32)))
    near, far = beside.best([4, 4], [False, True])[0]
    assert far < near, "across nodes it is thought to be a little worse than inside one"


def test_overlap_is_found():
    told = []
    for nodes, workers, local in ((1, 1, 32), (1, 2, 32), (1, 4, 64), (2, 8, 16), (2, 8, 64), (4, 16, 128)):
        step, sync = times(nodes, workers, local)
        grad = step - sync
        told.append([nodes, workers, local, grad, (grad**3 + (3 * sync) ** 3) ** (1 / 3)])
    assert StepModel.of(told).overlap > 1.5
    assert StepModel.of(seen((1, 1, 32), (1, 2, 32), (1, 4, 64), (2, 8, 16), (2, 8, 64), (4, 16, 128))).overlap == 1.0


def test_the_best_batch_is_no_worse_than_any():
    rng = np.random.default_rng(3)
    jobs = goodputs(seen((1, 1, 32), (1, 4, 32), (2, 8, 32)))
    for workers, across in ((1, False), (4, False), (8, True)):
        best = jobs.best([workers], [across])[0, 0]
        for size in rng.integers(32, 513, 40).tolist():
            if size >= 8 * workers:
                assert jobs.at_batch(np.array([float(size)]), [workers], 4)[0, 0] <= 1.04 * best
    assert jobs.best([65], [True])[0, 0] == 0, "not everybody has a part of the largest batch"
    assert jobs.here(np.array([[0]]), np.array([[False]]))[0, 0] == 0


def test_noise_makes_large_batches_pay():
    quiet, noisy = goodputs(seen((1, 1, 32), (1, 4, 32)), 0.1), goodputs(seen((1, 1, 32), (1, 4, 32)), 1000.0)
    assert (noisy.best([4], [False]) / noisy.best([1], [False]))[0, 0] > (quiet.best([4], [False]) / quiet.best([1], [False]))[
        0, 0
    ]


def test_a_curve_of_losses_is_found_again():
    steps = [10.0 * 1.3**k for k in range(14)]
    truth = (0.02, 0.5, 0.8)
    slope, start, floor = fit_losses([(k, 1 / (truth[0] * k + truth[1]) + truth[2]) for k in steps])
    assert floor == pytest.approx(0.8, rel=0.05)
    end = converged_at(*truth)
    assert converged_at(slope, start, floor) == pytest.approx(end, rel=0.15)
    now, later = (1 / (truth[0] * k + truth[1]) + truth[2] for k in (end, 1.1 * end))
    assert now - later <= 0.01 * truth[2]


def test_losses_that_do_not_fall_have_no_curve():
    assert fit_losses([(float(k), 1.0 + 0.1 * k) for k in range(1, 8)]) is None


def test_a_speed_that_was_seen_once_is_thought_to_scale():
    assert speeds.rate_at(speeds.fit_speeds([(2, 3.0)]), 8) == pytest.approx(12.0)


def test_speeds_that_were_seen_are_found_again():
    theta = (2.0, 0.3, 0.02)
    curve = speeds.fit_speeds([(w, speeds.rate_at(theta, w)) for w in (1, 2, 4, 16)])
    assert [speeds.rate_at(curve, w) for w in (3, 8, 32)] == pytest.approx([speeds.rate_at(theta, w) for w in (3, 8, 32)])


def test_no_speed_is_ever_negative():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        curve = speeds.fit_speeds([(w, float(rng.uniform(0.5, 4.0))) for w in sorted(rng.choice(16, 4, replace=False) + 1)])
        assert all(speeds.rate_at(curve, w) > 0 for w in range(1, 65))


def test_what_differs_little_is_nothing_new():
    fact = speeds.speed_observation((), 2, 3.0)
    assert fact is not None
    assert speeds.speed_observation(fact["seen"], 2, 3.2) is None
    more = speeds.speed_observation(fact["seen"], 4, 5.0)
    assert more is not None
    assert more["seen"] == [[2, 3.0], [4, 5.0]]
