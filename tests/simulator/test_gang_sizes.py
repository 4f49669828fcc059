"""Jobs that run with another number of workers than they asked for: by the table where it has that size, else in proportion."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.job import Job
from fairlead.core.plan import Launches
from fairlead.simulator.costs import Costs
from fairlead.simulator.world import World
from fairlead.testing import cluster
from fairlead.workloads.throughput_tables import ThroughputTable

KEYS = (("", 1), ("net", 1), ("net", 2), ("net", 4))
ALONE = np.array([[1.0], [1.0], [1.8], [3.0]])


def rates(*sizes: int, **fields) -> list[float]:
    """The rates of one job that is launched again and again, with these numbers of workers."""
    table = ThroughputTable(("v100",), KEYS, ALONE, ALONE, np.zeros((4, 4, 1)), "made up")
    world = World(cluster("v100:8"), table, Costs())
    world.add({0: Job("job", steps=1000.0, **fields)})
    found, one = [], np.array([0])
    for second, size in enumerate(sizes):
        world.launch(Launches(one, one, np.array([0, size]), np.arange(size)), float(second))
        found.append(float(world.columns["rate"][0]))
        world.stop(one, second + 1.0, saved=True)
    return found


def test_a_size_that_was_measured_is_looked_up():
    assert rates(4, 2, 4, 1, kind="net", workers=4) == [3.0, 1.8, 3.0, 1.0]


def test_another_size_runs_in_proportion_to_the_one_asked_for():
    assert rates(3, 4, 8, kind="net", workers=4) == pytest.approx([2.25, 3.0, 6.0])


def test_a_job_in_seconds_takes_longer_with_fewer_workers():
    assert rates(1, 4, 2, workers=4) == [0.25, 1.0, 0.5]


def test_memory_is_judged_at_the_size_that_a_job_is_started_with_not_at_the_one_before():
    table = ThroughputTable(
        ("v100",), KEYS, ALONE, ALONE, np.zeros((4, 4, 1)), "made up", memory_gb=np.array([0.0, 20.0, 12.0, 7.0])
    )
    machine = Cluster((Node("n", "v100", 8),), (AcceleratorType("v100", 16.0),))
    world, one = World(machine, table, Costs()), np.array([0])
    world.add({0: Job("job", steps=1000.0, kind="net", workers=4)})

    def started(size: int) -> Launches:
        return Launches(one, one, np.array([0, size]), np.arange(size))

    assert world.out_of_memory(started(1)).tolist() == [0], "20 GB, of 16"
    world.launch(started(2), 0.0)
    world.stop(one, 1.0, saved=True)
    assert world.out_of_memory(started(4)).tolist() == []
    assert world.out_of_memory(started(1)).tolist() == [0]
