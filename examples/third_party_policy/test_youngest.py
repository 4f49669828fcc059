"""The contract that comes with Fairlead, and one test of what this policy is about."""

from __future__ import annotations

from fairlead_youngest import YoungestFirst

from fairlead.testing import Harness, PolicyContract, job


class TestYoungestFirst(PolicyContract):
    make = YoungestFirst


def test_a_newcomer_pushes_its_elder_aside() -> None:
    harness = Harness().cluster("v100:1").policy(YoungestFirst()).submit(job("old"), job("new").at(30))
    assert harness.round().running == {"old"}
    assert harness.round().running == {"new"}
    harness.run()
