"""What a journal says about jobs that were submitted with predictions and shared a GPU."""

from __future__ import annotations

import numpy as np

from fairlead.core.events import JobsFailed, JobsFinished, JobSubmitted, RoundPlanned, SlowdownExceeded
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead_papers.prediction.predicted_cluster import summary


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def launched(time: float, *jobs: int, gpu: int = 0) -> RoundPlanned:
    offsets, places = ints(*range(len(jobs) + 1)), ints(*[gpu] * len(jobs))
    return RoundPlanned(RoundPlan(time, launches=Launches(ints(*jobs), ints(*[0] * len(jobs)), offsets, places)))


def test_shared_time_and_the_repair_of_a_slow_pair():
    events = [
        *(JobSubmitted(0.0, number, Job(f"job{number}", prediction='{"device": "h200"}')) for number in range(3)),
        launched(10.0, 0, 1),
        SlowdownExceeded(20.0, ints(0), np.array([1.8])),
        RoundPlanned(RoundPlan(25.0, suspended=ints(1))),
        JobsFinished(45.0, ints(0), np.array([44.0])),
        launched(50.0, 1),
        JobsFailed(60.0, ints(1), np.array([60.0]), "out of memory"),
    ]
    found = summary(events, ["a", "b", "c"])
    assert (found["busy_s"], found["shared_s"]) == (45.0, 15.0)
    assert found["exceeded"] == [{"job": 0, "with": [1], "slowdown": 1.8, "seen_s": 20.0, "separated_s": 5.0}]
    assert found["failures"] == ["out of memory [1]"]
    assert found["jobs"][1]["started_s"] == [10.0, 50.0]
    assert "started_s" not in found["jobs"][2]
