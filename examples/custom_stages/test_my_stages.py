"""The contracts that ship with Fairlead, and one test of what the admission is about."""

from __future__ import annotations

from my_stages import LastFree, PerUser

import fairlead
from fairlead.testing import AdmissionContract, PlacementContract


class TestLastFree(PlacementContract):
    make = LastFree


class TestPerUser(AdmissionContract):
    make = staticmethod(lambda: PerUser(2))


def test_a_user_has_one_job_at_a_time() -> None:
    jobs = [fairlead.Job(name, steps=600.0, user="ann") for name in ("a", "b")]
    run = fairlead.simulate(jobs, "4xv100:4", fairlead.Scheduler("fifo", admission=PerUser(1), round_s=0))
    assert run.jobs["first_started_s"].to_pylist() == [0.0, 600.0]
