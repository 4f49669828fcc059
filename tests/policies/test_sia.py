"""Sia: types and sizes for all jobs together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import ELASTIC, Job
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.policies.elastic.sia import Sia, _chosen
from fairlead.workloads.trace import Trace
from scenes import table_of

MACHINES = Cluster.parse("4xv100:4,4xk80:4")
RATES = {
    ("picky", 1): [10.0, 1.0],
    ("picky", 2): [19.0, 1.9],
    ("picky", 4): [36.0, 3.6],
    ("easy", 1): [5.0, 4.0],
    ("easy", 2): [9.5, 7.6],
    ("easy", 4): [18.0, 14.4],
}


def launches(jobs: list[Job], policy: object = "sia") -> list[tuple[float, int, str, int]]:
    """When, who, where, with how many workers."""
    journal, table = MemoryJournal(), table_of(MACHINES.type_names, RATES)
    scheduler = SchedulerConfig.from_data({"policy": policy, "rounds": 60})
    run_simulation(Simulation(Trace.of(jobs), MACHINES, scheduler, table), journal=journal)
    found = []
    for event in journal.events:
        if isinstance(event, ev.RoundPlanned):
            starts = event.plan.launches
            columns = (starts.jobs, starts.types, starts.workers)
            for number, kind, workers in zip(*(column.tolist() for column in columns)):
                found.append((event.time, number, MACHINES.type_names[kind], workers))
    return found


def test_who_is_at_home_on_a_type_gets_it_and_sizes_double_from_one():
    jobs = [Job(kind, kind=kind, steps=100_000.0, workers=2, mode=ELASTIC) for kind in ("easy", "picky")]
    found = launches(jobs)
    assert [one[2:] for one in found if one[1] == 1][:3] == [("v100", 1), ("v100", 2), ("v100", 4)]
    assert [one[2:] for one in found if one[1] == 0 and one[2] == "k80"][-1] == ("k80", 4)


def test_rigid_jobs_choose_a_type_and_keep_their_size():
    jobs = [Job("easy", kind="easy", steps=1e4, workers=4), Job("picky", kind="picky", steps=1e4, workers=4)]
    assert launches(jobs)[:2] == [(0.0, 0, "k80", 4), (0.0, 1, "v100", 4)]


def test_a_waiting_job_costs_more_than_any_speed_is_worth():
    """Nine single workers on eight accelerators: nobody grows while somebody waits."""
    jobs = [Job(f"j{n}", kind="easy", steps=2_000.0, mode=ELASTIC) for n in range(9)]
    first = [one for one in launches(jobs) if one[0] == 0.0]
    assert len(first) == 8
    assert all(workers == 1 for *_, workers in first)


def test_it_is_near_the_best_of_all_ways():
    """Against every way to give four jobs an option each; with so few, two of them in between are many."""
    rng, kept = np.random.default_rng(4), []
    for _ in range(30):
        options = [(m, t, w) for m in range(4) for t in range(2) for w in (1, 2, 4)]
        job, kind, size = (np.array(column, dtype=np.int64) for column in zip(*options))
        gain, capacity = rng.uniform(0.05, 1.0, len(options)) * (1 + np.log2(size)), np.array([4, 3])
        chosen = _chosen(job, kind, size, gain, 4, capacity)
        used = np.bincount(kind[chosen], size[chosen], 2)
        assert (used <= capacity).all()
        assert len(set(job[chosen].tolist())) == len(chosen)
        mine = [[-1, *(job == m).nonzero()[0].tolist()] for m in range(4)]
        best = 0.0
        for some in itertools.product(*mine):
            taken = [at for at in some if at >= 0]
            if (np.bincount(kind[taken], size[taken], 2) <= capacity).all():
                best = max(best, float(gain[taken].sum()))
        kept.append(float(gain[chosen].sum()) / best)
        assert float(gain[chosen].sum()) >= best - 2 * gain.max()
    assert np.mean(kept) > 0.95


@pytest.mark.parametrize(
    ("field", "value"), [("power", 0.0), ("power", -11.0), ("penalty", 1.0), ("penalty", 1e300), ("restart_s", -1.0)]
)
def test_wrong_parameters_are_told(field, value):
    with pytest.raises(InputError, match=f"policy sia: field '{field}'"):
        Sia(**{field: value})
