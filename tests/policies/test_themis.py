"""Themis: the auction among the worst off, leases, what winners pay; the ranking by ρ; and the example of three jobs that
Shockwave gives for it (Table 1 and Figure 1)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.errors import InputError
from fairlead.core.job import ELASTIC, Job
from fairlead.policies.ranking.themis import Themis, ThemisRanking
from fairlead.testing import Harness, PolicyContract, job
from fairlead.workloads.throughput_tables import ThroughputTable


class TestThemis(PolicyContract):
    make = staticmethod(lambda: Themis(lease_s=900.0))


class TestThemisVisibleToAll(PolicyContract):
    make = staticmethod(lambda: Themis(visible=1.0, lease_s=700.0, payments=False))


class TestThemisRanking(PolicyContract):
    make = ThemisRanking


class TestThemisRankingStrict(PolicyContract):
    make = staticmethod(lambda: ThemisRanking(backfill=False))


SERIAL = {"A": 12.0, "B": 8.0, "C": 6.0}
ASKED = {"A": 3, "B": 2, "C": 2}
ROUND_S = 60.0


def linear_table() -> ThroughputTable:
    """One kind that does a step for each worker in a round."""
    keys = (("", 1), *(("iteration", workers) for workers in (1, 2, 3)))
    alone = np.array([[1.0], *([workers / ROUND_S] for workers in (1, 2, 3))])
    return ThroughputTable(("v100",), keys, alone, alone, np.zeros((4, 4, 1)), "linear")


def three_jobs(visible: float) -> tuple[dict[str, int], list[str]]:
    """In which round each job ends, and who had the four accelerators in each round, with a fraction visible."""
    config = SchedulerConfig(round_s=ROUND_S)
    harness = Harness(config, table=linear_table()).cluster("v100:4")
    harness.policy(Themis(visible=visible, lease_s=ROUND_S))
    harness.submit(*(Job(name, steps=SERIAL[name], workers=ASKED[name], kind="iteration", mode=ELASTIC) for name in SERIAL))
    rounds = []
    while not rounds or rounds[-1]:
        harness.round()
        jobs = harness.loop.state.snapshot(harness.loop.backend.now).jobs
        rounds.append("".join(name * int(held) for name, held in zip(np.array(list(SERIAL))[jobs.number], jobs.held)))
    harness.check()
    return {name: math.ceil(harness.ended_s(name) / ROUND_S - 1e-9) for name in SERIAL}, rounds[:-1]


@pytest.mark.parametrize(("visible", "ends"), [(1 / 3, (7, 6, 4)), (2 / 3, (7, 5, 5)), (1.0, (7, 6, 5))])
def test_the_ends_of_three_jobs_give_the_published_figures(visible, ends):
    """Table 1 of Shockwave, in whole rounds: the worst ρ to one digit, the average JCT, the makespan."""
    published = {1 / 3: (1.0, 5.7, 7), 2 / 3: (1.1, 5.7, 7), 1.0: (1.1, 6.0, 7)}[visible]
    found, _ = three_jobs(visible)
    assert tuple(found.values()) == ends
    ratios = [end / (SERIAL[name] * 3 / 4) for name, end in found.items()]
    assert (round(max(ratios), 1), round(sum(ends) / 3, 1), max(ends)) == published


def test_with_two_thirds_visible_the_schedule_is_that_of_figure_1():
    found, rounds = three_jobs(2 / 3)
    assert rounds == ["AABB", "BBCC", "AACC", "AABB", "BBCC", "AAA", "AAA"]
    assert [round(end / (SERIAL[name] * 3 / 4), 2) for name, end in found.items()] == [0.78, 0.83, 1.11]


def test_a_lease_is_held_until_it_ends():
    harness = Harness().cluster("v100:1").policy(Themis(lease_s=900.0))
    harness.submit(job("first").lasting(5000), job("second").lasting(5000).at(10))
    assert [sorted(harness.round().running) for _ in range(6)] == [["first"]] * 3 + [["second"]] * 3
    harness.run()


def test_where_there_is_enough_for_all_nobody_is_disturbed():
    harness = Harness().cluster("v100:4").policy(Themis(lease_s=300.0))
    harness.submit(job("a").workers(2).lasting(4000), job("b").workers(2).lasting(4000))
    harness.run()
    assert harness.state.all_jobs().starts.tolist() == [1, 1]


def test_a_winner_whose_presence_costs_others_much_has_a_shorter_lease():
    """Both have done nothing and only one can run: the other's loss is all it has, and a third of the lease is kept."""

    def starts(payments: bool) -> list[int]:
        harness = Harness().cluster("v100:1").policy(Themis(visible=1.0, lease_s=3000.0, payments=payments))
        harness.submit(job("a").lasting(6000), job("b").lasting(6000))
        for _ in range(6):
            harness.round()
        return harness.state.all_jobs().starts.tolist()

    assert starts(payments=False) == [1, 0]
    assert starts(payments=True) == [1, 1]


def test_only_the_worst_off_bid_and_what_they_leave_goes_to_the_others():
    """One of three bids: the gang, which never ran. The fourth accelerator is for whoever is next."""
    harness = Harness().cluster("v100:4").policy(Themis(visible=1 / 3, lease_s=300.0))
    harness.submit(job("gang").workers(3).at(20), job("old").workers(2), job("older").workers(2))
    assert harness.round().running == {"old", "older"}
    assert harness.round().running == {"gang"}
    harness.run()


def test_an_elastic_job_grows_into_what_others_leave():
    harness = Harness().cluster("v100:4").policy(Themis(visible=1.0, lease_s=6000.0))
    harness.submit(job("short").workers(2).lasting(300), job("wide").workers(4).lasting(3000).with_(mode=ELASTIC))
    first = harness.round()
    assert dict(zip(first.plan.launches.jobs.tolist(), first.plan.launches.workers.tolist())) == {0: 2, 1: 2}
    harness.round()
    assert harness.state.all_jobs().held.tolist() == [0, 4]
    harness.run()
    assert harness.ended_s("wide") == 300 + 3000 - 150, "half as fast with half of its workers"


def test_by_rank_whoever_would_be_latest_goes_first():
    """A short job's ratio grows faster: it came later, and goes first."""
    harness = Harness().cluster("v100:1").policy("themis-ranking")
    harness.submit(job("long").lasting(20_000), job("short").lasting(600).at(10))
    assert harness.round().running == {"long"}
    assert harness.round().running == {"short"}
    harness.run()


@pytest.mark.parametrize(("field", "value"), [("visible", 0.0), ("visible", 1.5), ("lease_s", 0.0), ("lease_s", math.inf)])
def test_parameters_without_a_meaning_are_refused(field, value):
    with pytest.raises(InputError, match=f"policy themis: field '{field}'"):
        Themis(**{field: value})
