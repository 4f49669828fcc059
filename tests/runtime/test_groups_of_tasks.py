"""Groups of trials on a real cluster."""

from __future__ import annotations

from fairlead.runtime.protocol.task_file import TaskSpec


def test_a_group_is_its_users_so_that_nobody_ends_anothers_trials():
    task = TaskSpec(run=["true"], group="rates", group_order=3)
    ann, bob = (task.job("a", user) for user in ("ann", "bob"))
    assert (ann.group, ann.group_order) == ("ann/rates", 3)
    assert bob.group != ann.group
    assert TaskSpec(run=["true"]).job("a", "ann").group == ""
