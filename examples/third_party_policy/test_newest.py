"""The contract that ships with Fairlead, and one test of what this policy is about."""

from __future__ import annotations

from fairlead_newest import NewestFirst

from fairlead.testing import Harness, PolicyContract, job


class TestNewestFirst(PolicyContract):
    make = NewestFirst


def test_a_new_job_preempts_an_older_one() -> None:
    harness = Harness().cluster("v100:1").policy(NewestFirst()).submit(job("old"), job("new").at(30))
    assert harness.round().running == {"old"}
    assert harness.round().running == {"new"}
    harness.run()
