"""Jobs and nodes by name: the youngest of a name is found, the others are told by number, and a name that nobody has is
answered with the near ones that one may see."""

from __future__ import annotations

import pytest
from serving import served

from fairlead.engine.state import State
from fairlead.runtime.control.submissions import MAX_SEARCHED, JobNames
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.testing.builders import cluster as cluster_of


def test_the_youngest_of_a_name_is_found_and_the_others_are_told_by_number():
    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.token)
        for _ in range(3):
            plane.submit([{"name": "train", "run": "true"}])
            with pytest.raises(RefusedRequest, match="the name 'train' is taken"):
                plane.submit([{"name": "train", "run": "true"}])
            plane.cancel("train")
        assert [(job["number"], job["earlier"]) for job in map(plane.job, ("train", "1", "0"))] == [
            (2, [0, 1]),
            (1, [0]),
            (0, []),
        ]


def test_a_requeued_job_does_not_share_its_name_with_another_that_has_not_ended():
    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.token)
        for _ in range(2):
            plane.submit([{"name": "train", "run": "true"}])
            plane.cancel("train")
        plane.requeue("0")
        with pytest.raises(RefusedRequest, match="another job named 'train' has not ended"):
            plane.requeue("1")
        with pytest.raises(RefusedRequest, match="the name 'train' is taken"):
            plane.submit([{"name": "train", "run": "true"}])
        plane.update("1", {"name": "second"})
        assert plane.requeue("second")["number"] == 1


def test_a_name_that_nobody_has_is_answered_with_the_near_ones():
    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.token)
        plane.submit([{"name": "train", "run": "true"}])
        for ask in (plane.job, plane.cancel):
            with pytest.raises(RefusedRequest, match=r"there is no job 'trian'; did you mean 'train'\?$"):
                ask("trian")
            with pytest.raises(RefusedRequest, match=r"there is no job 'zzz'$"):
                ask("zzz")
        with pytest.raises(RefusedRequest, match="there is no node 'v100-9'; did you mean 'v100-0'"):
            plane.drain("v100-9")


def test_a_wrong_name_costs_no_look_at_all_jobs_of_others():
    state = State(cluster_of("v100:4"))
    state.next_number = 10 * MAX_SEARCHED
    looked_at = list[int]()
    assert JobNames().near(state, "trian", lambda number: bool(looked_at.append(number))) == []
    assert (len(looked_at), looked_at[0]) == (MAX_SEARCHED, state.next_number - 1), "the youngest"


def test_a_user_does_not_lift_the_hold_of_an_operator():
    with served("v100:4") as cluster:
        operator = ControlPlaneClient(cluster.url, cluster.token)
        ann = ControlPlaneClient(cluster.url, cluster.user)
        ann.submit([{"name": "train", "run": "true"}])
        operator.hold("train")
        for change in (ann.release, ann.hold, lambda name: ann.requeue(name, hold=True)):
            with pytest.raises(RefusedRequest, match="the job is held by") as refused:
                change("train")
            assert refused.value.status == 403
        operator.release("train")
        assert ann.hold("train")["held_by"] == "ann"
        ann.release("train")
