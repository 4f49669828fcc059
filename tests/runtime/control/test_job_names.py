"""Jobs and nodes by name: the youngest of a name is found, the others are told by number, and a name that nobody has is
answered with the near ones that one may see."""

from __future__ import annotations

from typing import Any

import pytest
from serving import served
from test_api import with_plane

from fairlead.engine.state import State
from fairlead.runtime.control.code_store import number_above
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


def test_users_have_their_own_names_and_an_operator_says_whose_job_is_meant():
    with served("v100:4") as cluster:
        operator, ann = ControlPlaneClient(cluster.url, cluster.token), ControlPlaneClient(cluster.url, cluster.user)
        task = {"name": "train", "run": "true"}
        assert ann.submit([task])[0]["number"] == 0
        assert operator.submit([{**task, "name": "other"}, task])[1]["number"] == 2, "another user's name is not taken"
        with pytest.raises(RefusedRequest, match="the name 'train' is taken"):
            ann.submit([task])
        assert (ann.job("train")["number"], operator.job("train")["number"]) == (0, 2), "one's own comes first"
        assert [operator.job(name)["number"] for name in ("ann/train", "root/train")] == [0, 2]
        assert [job["number"] for job in operator.find_jobs(["ann/tr*", "root/train"])] == [0, 2]
        assert [job["number"] for job in operator.find_jobs(["tr*"], all_users=True)] == [0, 2]
        assert ann.job("ann/train")["number"] == 0
        for name in ("root/train", "ann/other", "eve/train"):
            with pytest.raises(RefusedRequest, match="there is no") as refused:
                ann.job(name)
            assert refused.value.status == 404
        operator.update("ann/train", {"name": "other"})
        assert ann.job("other")["number"] == 0, "unique among her names"
        assert operator.cancel("ann/other")["number"] == 0
        assert operator.job("other")["number"] == 1


def test_a_name_of_several_other_users_is_refused_until_the_user_is_named():
    async def scene(plane, who):
        for user in ("ann", "bob"):
            tasks = [{"name": "train", "run": "x"}, {"name": "sweep", "run": "x", "array": 2}]
            assert (await who(user).post("/v1/jobs", json={"jobs": tasks})).status_code == 201
        root = who("root")
        for method, path in (("GET", "/v1/jobs/train"), ("DELETE", "/v1/jobs/train"), ("GET", "/v1/jobs?select=sweep[0]")):
            answer = await root.request(method, path)
            assert answer.status_code == 409
            assert "several users' jobs; choose one: ann/" in answer.json()["detail"]
        depends = await root.post("/v1/jobs", json={"jobs": [{"run": "x", "after": "train"}]})
        assert (depends.status_code, "ann/train, bob/train" in depends.text) == (409, True)
        assert (await root.post("/v1/jobs", json={"jobs": [{"run": "x", "after": "bob/train"}]})).status_code == 201
        found = (await root.get("/v1/jobs?select=bob/sweep")).json()["jobs"]
        assert [job["number"] for job in found] == [4, 5]
        assert (await who("ann").delete("/v1/jobs/train")).status_code == 200
        assert (await root.get("/v1/jobs/train")).json()["number"] == 3, "the only one that has not ended"

    with_plane(scene)


def test_a_name_and_a_user_mean_that_users_job():
    async def scene(plane, who):
        for user in ("ann", "bob", "root"):
            tasks = [{"name": "train", "run": "x"}, {"name": "sweep", "run": "x", "array": 2}]
            assert (await who(user).post("/v1/jobs", json={"jobs": tasks})).status_code == 201
        root, numbers = who("root"), {"train": [3], "sweep": [4, 5], "sweep[1]": [5], "tr*": [3], "3": [3]}
        for word, found in numbers.items():
            answer = await root.get(f"/v1/jobs?user=bob&select={word}")
            assert [job["number"] for job in answer.json()["jobs"]] == found, word
        await root.delete("/v1/jobs/train")
        assert [job["number"] for job in (await root.get("/v1/jobs?user=bob&select=train")).json()["jobs"]] == [3]
        assert (await root.get("/v1/jobs?user=bob&select=0")).status_code == 404, "it is ann's"

    with_plane(scene)


def test_ones_own_ended_job_comes_before_the_jobs_of_others():
    async def scene(plane, who):
        root, bob, task = who("root"), who("bob"), {"name": "train", "run": "x"}
        await root.post("/v1/jobs", json={"jobs": [task]})
        await root.delete("/v1/jobs/train")
        await bob.post("/v1/jobs", json={"jobs": [task, {"name": "x" * 128, "run": "x"}]})
        assert (await root.get("/v1/jobs/train")).json()["number"] == 0
        assert (await root.delete("/v1/jobs/train")).status_code == 409, "it does not mean bob's job"
        assert (await bob.delete("/v1/jobs/train")).status_code == 200
        assert (await root.post("/v1/jobs/train/requeue", json={})).json()["number"] == 0
        found = await root.get("/v1/jobs", params={"select": "bob/" + "x" * 128})
        assert [job["number"] for job in found.json()["jobs"]] == [2]

    with_plane(scene)


def test_new_jobs_get_numbers_above_those_of_checkpoints_that_the_journal_does_not_know(tmp_path):
    assert number_above(tmp_path / "none", 3) == 3
    for name in ("0", "2", "7", "notes", "99999999"):
        (tmp_path / name).mkdir()
    assert (number_above(tmp_path, 0), number_above(tmp_path, 8)) == (8, 8)


def test_numbers_that_are_left_out_are_no_jobs():
    async def scene(plane: Any, who: Any) -> None:
        ann = who("ann")
        plane.backend.next_number = 8
        for name in ("one", "two"):
            assert (await ann.post("/v1/jobs", json={"jobs": [{"name": name, "run": "true"}]})).status_code == 201
        assert [job["number"] for job in (await ann.get("/v1/jobs")).json()["jobs"]] == [8, 9]
        assert (await ann.get("/v1/jobs/two")).json()["number"] == 9
        assert (await ann.get("/v1/jobs/3")).status_code == 404
        queued = [line for line in plane.metrics.text().decode().splitlines() if line.startswith("fairlead_jobs{")]
        assert sum(float(line.split()[-1]) for line in queued) == 2

    with_plane(scene)
