"""Jobs that all differ: the interior-point method with an exact end against HiGHS on the whole program, and its bytes.

`FAIRLEAD_INSTANCES=500 pytest tests/policies/test_per_job_model.py` tries more random instances."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from fairlead.policies.allocation.lp.block_vertex import GAP, VertexSearch
from fairlead.policies.allocation.lp.hull_model import HullModel
from fairlead.policies.allocation.lp.job_classes import JobClasses, normalized_rates
from fairlead.policies.allocation.lp.level_search import DeadlineDemands
from fairlead.policies.allocation.lp.per_job_model import PerJobModel, all_differ, max_min_by_blocks
from fairlead.policies.allocation.lp.program import Model, Program
from fairlead.policies.allocation.lp.water_filling_model import FlexibleFill, ShareGroups, fill_levels

pytestmark = pytest.mark.long

INSTANCES = int(os.environ.get("FAIRLEAD_INSTANCES", "24"))
HELPED = 0.12
"""Of the instances, the largest part in which HiGHS may have to help."""


@dataclass(frozen=True)
class Instance:
    """Classes of one job each, and the GPUs by type."""

    classes: JobClasses
    capacity: np.ndarray
    rng: np.random.Generator

    @classmethod
    def random(cls, seed: int) -> Instance:
        """Few or many jobs, one to eight types; tied, unusable and absent types, gangs and weights among them."""
        rng = np.random.default_rng(seed)
        types = int(rng.choice([1, 2, 3, 3, 4, 5, 8]))
        jobs = int(rng.choice([1, 2, 5, 12, 40, 100, 300, 700], p=[0.05, 0.1, 0.15, 0.2, 0.2, 0.15, 0.1, 0.05]))
        kinds = rng.uniform(0.05, 1.0, (int(rng.choice([3, 26])), types)) * 10.0 ** rng.uniform(-2, 2)
        noise = float(rng.choice([0.0, 0.01, 0.3], p=[0.2, 0.5, 0.3]))
        if rng.random() < 0.15:  # rates of few values tie in many ways
            kinds = rng.choice([1.0, 2.0, 4.0], kinds.shape)
        rates = kinds[rng.integers(len(kinds), size=jobs)] * rng.uniform(1.0 - noise, 1.0 + noise, (jobs, types))
        capacity = np.maximum(1, rng.integers(1, 9, types) * round(max(1, jobs / float(rng.choice([0.5, 2, 8]))) / 4))
        workers = rng.choice([1, 1, 1, 2, 4, 8], size=jobs) if rng.random() < 0.5 else np.ones(jobs, dtype=np.int64)
        workers = np.minimum(workers, capacity.max())
        if types > 1 and rng.random() < 0.3:
            capacity[rng.integers(types)] = 0
            workers = np.minimum(workers, max(capacity.max(), 1))
        rates = np.where(workers[:, None] <= capacity, rates, 0.0)
        if rng.random() < 0.4:
            rates = np.where(rng.random(rates.shape) < 0.3, 0.0, rates)
        weight = rng.choice([1.0, 1.0, 2.0, 0.25], size=jobs) if rng.random() < 0.5 else np.ones(jobs)
        some = rates.max(axis=1) > 0
        if not some.any() or not capacity.any():
            return cls.random(seed + 100_000)
        rates, workers, weight, jobs = rates[some], workers[some], weight[some], int(some.sum())
        one = np.arange(jobs)
        keys = tuple((float(job), float(seed)) for job in range(jobs))
        group = np.zeros(jobs, dtype=np.int64)
        return cls(JobClasses(one, group + 1, one, workers, weight, group, rates, keys), capacity, rng)

    def check(self, time: np.ndarray) -> None:
        """Time that no job or type has is not given."""
        assert time.min() >= -GAP
        assert time.sum(axis=1).max() <= 1 + GAP
        assert (self.classes.workers @ time <= self.capacity * (1 + 2 * GAP) + 1e-12).all()
        assert not time[self.classes.rates == 0].any()

    def max_min(self, gain: np.ndarray) -> float:
        """The highest level, by HiGHS on a column for each job and type."""
        top = gain.max(axis=1)
        return self._highs(gain / top[:, None], 0.0 * top, level=(1.0, 0.0 * self.capacity, self.classes.weight / top))

    def excess(self, need: np.ndarray) -> float:
        """The least θ with which throughputs fit into (1 + θ) of each type."""
        top = self.classes.rates.max(axis=1)
        return -self._highs(self.classes.rates / top[:, None], need / top, level=(-1.0, 1.0 * self.capacity, 0.0 * top))

    def most(self, worth: np.ndarray, need: np.ndarray, over: float) -> float:
        """The highest worth of time that meets the throughputs."""
        top = self.classes.rates.max(axis=1)
        return self._highs(self.classes.rates / top[:, None], need / top, worth=worth, over=over)

    def _highs(
        self,
        rate: np.ndarray,
        need: np.ndarray,
        *,
        worth: np.ndarray | None = None,
        level: tuple[float, np.ndarray, np.ndarray] | None = None,
        over: float = 0.0,
    ) -> float:
        """The optimum over time by job and type, and a level of some value that adds to the capacity and to the demands."""
        jobs, types = rate.shape
        row, type_ = (rate > 0).nonzero()
        column, last = np.arange(len(row)), np.full(types + jobs, len(row))
        gain, grows, rises = level or (0.0, 0.0 * self.capacity, 0.0 * need)
        entries = (
            np.concatenate((type_, types + row, types + jobs + row, np.arange(types), types + jobs + np.arange(jobs))),
            np.concatenate((column, column, column, last)),
            np.concatenate((self.classes.workers[row] * 1.0, np.ones(len(row)), rate[row, type_], -grows, -rises)),
        )
        below = np.concatenate((np.full(types + jobs, -np.inf), need))
        above = np.concatenate((self.capacity * (1.0 + over), np.ones(jobs), np.full(jobs, np.inf)))
        cost = np.append(np.zeros(len(row)) if worth is None else worth[row, type_], gain)
        lower = np.append(np.zeros(len(row)), -np.inf if level else 0.0)
        upper = np.append(np.full(len(row), np.inf), np.inf if level else 0.0)
        program = Program("referee", Model(cost, lower, upper, below, above, entries), tolerance=1e-10)
        return float(program.solve().objective)

    @property
    def deadlines(self) -> tuple[DeadlineDemands, float, float]:
        """Demands that fall with a level, as of makespan or of finish-time fairness; the least and the highest level alone."""
        rng, top = np.random.default_rng(len(self.classes)), self.classes.rates.max(axis=1)
        left = top * rng.uniform(1.0, 48.0, len(top))
        fair = rng.random() < 0.6
        unit = rng.uniform(4.0, 60.0, len(top)) if fair else np.ones(len(top))
        spent = rng.uniform(0.0, 30.0, len(top)) * (rng.random(len(top)) < 0.5) * fair
        soonest = left / top
        alone = (spent + soonest) / unit
        return DeadlineDemands(left, unit, spent, soonest, 1e-5 * top), float(alone.min()), float(alone.max())

    def model(self, near: np.ndarray | None = None) -> PerJobModel:
        return PerJobModel("blocks", self.classes, self.capacity, near)


@pytest.fixture
def by_simplex(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs for which HiGHS had to help."""
    helped: list[str] = []
    plain = VertexSearch.by_simplex

    def noted(search: VertexSearch):
        helped.append(search.name)
        return plain(search)

    monkeypatch.setattr(VertexSearch, "by_simplex", noted)
    return helped


def test_max_min_levels_are_optimal(by_simplex: list[str]):
    for seed in range(INSTANCES):
        made = Instance.random(seed)
        gain = normalized_rates(made.classes, made.capacity)
        time, near = max_min_by_blocks("max-min", made.classes, made.capacity, gain, None)
        made.check(time)
        level = float(((gain * time).sum(axis=1) / made.classes.weight).min())
        assert level == pytest.approx(made.max_min(gain), rel=5e-9), seed
        again, _ = max_min_by_blocks("max-min", made.classes, made.capacity, gain, near)
        assert ((gain * again).sum(axis=1) / made.classes.weight).min() == pytest.approx(level, rel=3e-9), seed
    assert len(by_simplex) <= HELPED * INSTANCES


def test_least_levels_are_optimal(by_simplex: list[str]):
    for seed in range(INSTANCES):
        made = Instance.random(seed)
        demand, lowest, highest = made.deadlines
        model = made.model()
        level, required, fit = model.min_level(demand, lowest, highest)
        assert fit.excess <= GAP
        made.check(model.shares(required, fit.used) / (1.0 + max(fit.excess, 0.0)))
        assert made.excess(demand.at(level)) <= 2 * GAP, seed
        assert level <= lowest * (1 + GAP) or made.excess(demand.at(level * (1 - 1e-7))) > -GAP, seed
        again = made.model(model.hints).min_level(demand, lowest, highest, level)[0]
        assert again == pytest.approx(level, rel=1e-8), seed
    assert len(by_simplex) <= HELPED * INSTANCES


def test_what_is_left_over_has_the_highest_worth(by_simplex: list[str]):
    for seed in range(INSTANCES):
        made = Instance.random(seed)
        model = made.model()
        need = made.rng.uniform(0.0, 1.0, len(made.classes)) * model.fastest
        need /= max(1.0, (1.0 + made.excess(need)) * made.rng.uniform(1.01, 3.0))
        required = model.to_demands(need)
        worth = model.worth(model.fastest)
        time = model.maximize(required, worth)
        made.check(time)
        assert ((made.classes.rates * time).sum(axis=1) >= need * (1 - 2 * GAP) - GAP).all()
        assert (worth * time).sum() == pytest.approx(made.most(worth, need, 0.0), rel=2e-9), seed
        price = made.rng.choice([1.0, 1.0, 2.5, 0.4], len(made.capacity))
        unit = (made.classes.rates / (price * made.classes.workers[:, None])).max(axis=1)
        worth, pay = model.worth(unit), price * made.classes.workers[:, None]
        time = model.maximize_ratio(required, worth, price)
        made.check(time)
        assert ((made.classes.rates * time).sum(axis=1) >= need * (1 - 2 * GAP) - GAP).all()
        ratio = (worth * time).sum() / (pay * time).sum()
        assert made.most(worth - ratio * pay, need, 0.0) <= 1e-6 * ratio * (pay * time).sum(), seed
    assert len(by_simplex) <= 3 * HELPED * INSTANCES


def test_water_fills_as_with_the_simplex_method():
    for seed in range(INSTANCES):
        made = Instance.random(seed)
        top = normalized_rates(made.classes, made.capacity).max(axis=1)
        groups = ShareGroups.one(len(top))
        if seed % 3 == 0:  # accounts, some of which serve their jobs in order
            of = made.rng.integers(0, 3, len(top))
            groups = ShareGroups(of, np.array([1.0, 2.0, 1.0]), np.array([False, True, False])).only(of >= 0)
        fills = [
            fill_levels(FlexibleFill(model, top), made.classes.weight, groups)
            for model in (made.model(), HullModel("simplex", made.classes, made.capacity))
        ]
        made.check(fills[0].fit.used / (1.0 + max(fills[0].fit.excess, 0.0)))
        np.testing.assert_allclose(fills[0].level / top, fills[1].level / top, rtol=1e-6, atol=1e-8, err_msg=str(seed))


# Bytes.


def perturbed(seed: int, jobs: int = 400, types: int = 3) -> Instance:
    """26 kinds of jobs, each job ± 1 %."""
    rng = np.random.default_rng(seed)
    rates = rng.uniform(0.1, 1.0, (26, types))[rng.integers(26, size=jobs)] * rng.uniform(0.99, 1.01, (jobs, types))
    workers, one = rng.choice([1, 1, 2, 4, 8], jobs), np.arange(jobs)
    capacity = np.full(types, 8 * max(1, jobs // 24))
    keys, group = tuple((float(job),) for job in range(jobs)), np.zeros(jobs, dtype=np.int64)
    weight = rng.choice([1.0, 1.0, 2.0], jobs)
    return Instance(JobClasses(one, group + 1, one, workers, weight, group, rates, keys), capacity, rng)


def digests(made: Instance, rough: np.ndarray | None = None) -> list[str]:
    """The digest of the exact time of every objective, from prices that are `rough`."""
    types = len(made.capacity)
    near = np.zeros((2, 12, types))
    if rough is not None:
        near[:, 0] = rough
    gain = normalized_rates(made.classes, made.capacity)
    times = [max_min_by_blocks("max-min", made.classes, made.capacity, gain, None if rough is None else near)[0]]
    demand, lowest, highest = made.deadlines
    model = made.model(None if rough is None else near)
    level, _, fit = model.min_level(demand, lowest, highest)
    times += [np.array(level), fit.used]
    model = made.model(None if rough is None else near)
    need = model.to_demands(0.1 * model.fastest)
    times.append(model.maximize(need, model.worth(model.fastest, ordered=True)))
    top = gain.max(axis=1)
    times.append(fill_levels(FlexibleFill(made.model(), top), made.classes.weight, ShareGroups.one(len(top))).fit.used)
    return [hashlib.sha256(time.tobytes()).hexdigest()[:16] for time in times]


@pytest.mark.parametrize("seed", range(4))
def test_other_ways_to_the_optimum_have_the_same_bytes(seed: int):
    made = perturbed(seed)
    cold = digests(made)
    for _ in range(3):
        rough = made.rng.uniform(0.2, 1.0, len(made.capacity))
        assert digests(made, rough / rough.sum()) == cold


@pytest.mark.parametrize("what", ["", "sums", "rates", "solver", "path", "libm"])
def test_allocations_depend_neither_on_the_rounding_of_a_machine_nor_on_earlier_ones(what: str):
    """Other orders of sums, and other last digits of the solver (tests/golden/perturbation.py)."""
    program = Path(__file__).parent / "per_job_digests.py"
    run = subprocess.run([sys.executable, program, what], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[::2] == lines[1::2]
    assert len(lines) == 40
    digest = hashlib.sha256(run.stdout.encode()).hexdigest()[:16]
    assert digest == "df1fa01e25791e87"


@pytest.mark.parametrize(("change", "differ"), [(0.0, False), (1e-12, False), (1e-8, True)])
def test_jobs_with_rates_in_the_same_proportion_have_no_blocks(change: float, differ: bool):
    made = perturbed(0)
    assert all_differ(made.classes)
    rates = made.classes.rates.copy()
    rates[17] = 3.0 * rates[203] * np.array([1.0, 1.0 + change, 1.0])
    assert all_differ(replace(made.classes, rates=rates)) == differ


def test_jobs_of_one_class_have_no_blocks_of_their_own():
    classes = perturbed(0).classes
    twice = replace(classes, count=classes.count + (np.arange(len(classes)) == 5))
    assert all_differ(twice, merged=True)
    assert not all_differ(twice)
    assert not all_differ(perturbed(0, jobs=200).classes)
