"""Table 4: bandwidth inside a node, by chance and by choice."""

from __future__ import annotations

import pytest

from fairlead.workloads.generate import Generator
from fairlead_papers.bandwidth import compare_bandwidth, on_empty_machines

PHILLY = {2: 1818, 4: 1870, 8: 1643}
"""Gangs of the Philly trace by number of workers, those that a machine of eight can hold."""


def short_jobs(seed: int, workers: dict[int, float]):
    made = Generator(jobs=200, jobs_per_hour=20, kinds=("ResNet-50",), durations=(1800.0, 3600.0), workers=workers)
    return made.trace(seed)


def test_with_phillys_gangs_machines_of_eight_give_one_and_a_half_times_the_bandwidth_of_chance():
    assert 1.4 < on_empty_machines("p3.16xlarge", PHILLY).ratio < 1.5


def test_on_machines_of_four_pairs_gain_a_third_and_whole_machines_nothing():
    pairs, both = on_empty_machines("p3.8xlarge", {2: 1}), on_empty_machines("p3.8xlarge", {2: 1, 4: 1})
    assert pairs.ratio == pytest.approx(4 / 3)
    assert both.ratio_of(4) == 1.0
    assert both.ratio < pairs.ratio


def test_behind_a_switch_there_is_nothing_to_choose():
    assert on_empty_machines("dgx-a100", {2: 1, 4: 1}).ratio == 1.0


@pytest.mark.parametrize(
    ("machine", "machines", "workers", "whole"),
    [("p3.8xlarge", 8, {1: 0.4, 2: 0.3, 4: 0.3}, 4), ("p3.16xlarge", 4, {1: 0.4, 2: 0.2, 4: 0.2, 8: 0.2}, 8)],
)
def test_in_a_run_gangs_find_more_than_by_chance_and_no_more_than_there_is(machine, machines, workers, whole):
    found = compare_bandwidth(short_jobs(0, workers), machine, machines)
    most = on_empty_machines(machine, {size: 1 for size in workers if size > 1})
    assert found.ratio > 1.05
    assert found.ratio_of(2) > 1.1
    assert found.ratio_of(whole) == 1.0
    assert all(gbps <= most.aware.by_workers[size] for size, gbps in found.aware.by_workers.items())
    assert sum(found.aware.starts.values()) > 40


def test_chance_is_the_same_for_the_same_seed_only():
    trace = short_jobs(1, {1: 0.5, 2: 0.5})
    first, again, other = (compare_bandwidth(trace, "p3.8xlarge", 4, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.random != other.random
    assert first.aware == other.aware
