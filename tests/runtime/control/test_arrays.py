"""Arrays and grids: one task that is many jobs."""

from __future__ import annotations

import orjson
import pytest
from serving import served

from fairlead.core.errors import InputError
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.runtime.protocol.task_file import TaskSpec, parse_task, task_of
from fairlead.runtime.protocol.task_parts import array_of, parse_indices


@pytest.mark.parametrize(
    ("text", "indices"),
    [("3", [3]), ("0-3", [0, 1, 2, 3]), ("0-7:3", [0, 3, 6]), ("1,3,5", [1, 3, 5]), ("4,0-1", [0, 1, 4]), ("7-7", [7])],
)
def test_indices_are_numbers_ranges_and_steps(text, indices):
    assert parse_indices(text) == indices


@pytest.mark.parametrize("text", ["", "a", "3-1", "0-", "-3", "0-4:0", "1,,2", "0-99999999", "0-10000", "0-4999,5000-10000"])
def test_other_indices_are_refused(text):
    with pytest.raises(ValueError, match=r"indices such as|at most"):
        parse_indices(text)


def members(**task: object) -> list[dict]:
    spec = TaskSpec.model_validate({"run": ["train", "--lr={lr}", "{x}"], "name": "sweep", **task})
    return [orjson.loads(spec.job("", "ann", (), member).command) for member in spec.members("0123abcd")]


def test_a_member_knows_its_index():
    first, last = members(array="2,5")
    assert first["array"] == {"name": "sweep", "id": "0123abcd", "index": 2, "size": 2}
    place = {"INDEX": "5", "POSITION": "1", "SIZE": "2", "MIN": "2", "MAX": "5"}
    assert last["env"] == {**{f"FAIRLEAD_ARRAY_{name}": value for name, value in place.items()}, "JOB_INDEX": "5"}
    assert last["run"] == ["train", "--lr={lr}", "{x}"]
    assert len(members(array=3)) == len(members(array="3")) == len(members(array=[0, 1, 2])) == 3


def test_a_grid_has_one_job_for_each_combination():
    found = members(grid={"lr": [0.1, 0.01], "seed": [1, 2, 3]}, env={"DEBUG": True})
    assert [one["array"]["values"] for one in found[:4]] == [
        {"lr": "0.1", "seed": "1"},
        {"lr": "0.1", "seed": "2"},
        {"lr": "0.1", "seed": "3"},
        {"lr": "0.01", "seed": "1"},
    ]
    assert found[3]["run"] == ["train", "--lr=0.01", "{x}"]
    values = {"DEBUG": "true", "FAIRLEAD_ARRAY_INDEX": "3", "JOB_INDEX": "3", "LR": "0.01", "SEED": "1"}
    assert {name: found[3]["env"][name] for name in values} == values
    assert (len(found), found[5]["array"]["size"]) == (6, 6)


def test_values_are_filled_in_once_and_variables_of_the_shell_stay():
    [found] = members(run="train --seed ${SEED} {SEED} {a} | tee log", grid={"SEED": [3], "a": ["{SEED}; x"]})
    assert found["run"] == ["bash", "-c", "train --seed ${SEED} 3 '{SEED}; x' | tee log"]
    [found] = members(run=["bash", "-c", "echo ${SEED}{SEED}"], grid={"SEED": [3]})
    assert found["run"] == ["bash", "-c", "echo ${SEED}3"]


def test_variables_may_be_numbers_and_truth_values():
    task = TaskSpec.model_validate({"run": "x", "env": {"SEED": 1, "LR": 0.5, "ON": True, "OFF": False, "NAME": "a"}})
    assert task.env == {"SEED": "1", "LR": "0.5", "ON": "true", "OFF": "false", "NAME": "a"}
    for wrong in (None, [1], {"a": 1}):
        with pytest.raises(InputError):
            parse_task({"run": "x", "env": {"SEED": wrong}}, "task.yaml")


@pytest.mark.parametrize(
    "task",
    [
        {"array": 3, "grid": {"lr": [1]}},
        {"array": True},
        {"array": 0},
        {"array": "3-1"},
        {"grid": {"lr": []}},
        {"grid": {"rank": [1]}},
        {"grid": {"lr": [1], "LR": [2]}},
        {"grid": {"no name": [1]}},
        {"grid": {"path": ["/x"]}},
        {"grid": {"job_index": [7]}},
        {"grid": {"lr": [1]}, "container": {"image": "one", "env": {"LR": 9}}},
        {"grid": {f"p{n}": ["é" * 10_000] for n in range(64)}},
        {"env": {f"P{n}": "é" * 10_000 for n in range(64)}},
        {"grid": {"a": list(range(200)), "b": list(range(200))}},
        {"name": "x" * 127, "array": 100},
        {"run": ["echo", *(8 * ["{a}" * 100])], "grid": {"a": ["x" * 30_000]}},
    ],
)
def test_arrays_and_grids_that_cannot_be_are_refused(task):
    with pytest.raises(InputError):
        parse_task({"run": "x", **task}, "task.yaml")


def test_an_array_is_one_submission_and_can_be_depended_on():
    with served("v100:4") as cluster:
        plane = ControlPlaneClient(cluster.url, cluster.token)
        plane.submit([{"name": "taken-2", "run": "true"}])
        with pytest.raises(RefusedRequest, match="'taken-2' is taken"):
            plane.submit([{"name": "taken", "run": "true", "array": 4}])
        assert len(plane.jobs()) == 1, "all or none"
        together = [{"name": "collect", "run": "true", "after": "sweep"}, {"name": "sweep", "run": "true", "array": "1-3"}]
        answer = plane.submit(together)
        assert [job["name"] for job in answer] == ["collect", "sweep-1", "sweep-2", "sweep-3"]
        assert plane.job("collect")["after"] == [job["number"] for job in answer[1:]]
        assert plane.job("sweep-2")["array"]["index"] == 2
        plane.submit([{"name": "later", "run": "true", "after": ["sweep"]}])
        assert plane.job("later")["after"] == plane.job("collect")["after"]
        assert plane.job("later")["array"] is None
        [first, _] = plane.submit([{"run": "true", "array": 2}])
        assert first["name"] == f"array-{first['array']['id']}-0"
        with pytest.raises(RefusedRequest, match="at most 10,000 jobs"):
            plane.submit([{"run": "true", "array": 6000}, {"run": "true", "array": 6000}])
        with pytest.raises(RefusedRequest, match="depend on at most 1,000,000 jobs in all"):
            plane.submit(
                [{"name": "a", "run": "x", "array": 1100}, {"name": "b", "run": "x", "array": 1000, "after": "a"}], dry_run=True
            )
        state = cluster.plane.loop.state
        assert array_of(state.job_of[answer[1]["number"]]) == answer[1]["array"]
        assert task_of(state.job_of[answer[1]["number"]]).environment["JOB_INDEX"] == "1"
