"""Jobs that come after others, as people submit them: names and numbers, within one submission, and what is refused."""

from __future__ import annotations

import asyncio

import pytest
from test_api import with_plane


def test_jobs_of_one_submission_name_each_other_in_any_order():
    async def scene(plane, who):
        ann = who("ann")
        await ann.post("/v1/jobs", json={"jobs": [{"name": "before", "run": "x"}]})
        jobs = [
            {"name": "last", "run": "x", "after": ["first", "middle", "first"]},
            {"name": "middle", "run": "x", "after": "first"},
            {"name": "first", "run": "x", "after": [0]},
        ]
        told = (await ann.post("/v1/jobs", json={"jobs": jobs})).json()["jobs"]
        assert told == [{"number": 3, "name": "last"}, {"number": 2, "name": "middle"}, {"number": 1, "name": "first"}]
        assert [(await ann.get(f"/v1/jobs/{name}")).json()["after"] for name in ("last", "middle", "first")] == [
            [1, 2],
            [1],
            [0],
        ]
        while "reason" not in (seen := (await ann.get("/v1/jobs/last")).json()):
            await asyncio.sleep(0.05)
        assert seen["reason"]["text"] == "Waiting until first, middle has finished"
        await ann.delete("/v1/jobs/before")
        while (seen := (await ann.get("/v1/jobs/last")).json())["phase"] == "queued":
            await asyncio.sleep(0.05)
        assert (seen["phase"], seen["reason"]["facts"]) == ("cancelled", {"job": "first", "how": "was cancelled"})
        late = await ann.post("/v1/jobs", json={"jobs": [{"run": "x", "after": ["before"]}]})
        assert (late.status_code, "never finish" in late.text) == (422, True)

    with_plane(scene)


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([{"name": "a", "run": "x", "after": ["b"]}, {"name": "b", "run": "x", "after": ["a"]}], "a cycle"),
        ([{"name": "a", "run": "x", "after": ["a"]}], "a cycle"),
        ([{"run": "x", "after": ["nobody"]}], "no job 'nobody'"),
        ([{"run": "x", "after": [7]}], "no job '7'"),
        ([{"run": "x", "after": ["hers"]}], "no job 'hers'"),
        ([{"run": "x", "after": ["x"] * 101}], "100"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(jobs, said):
    async def scene(plane, who):
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": "hers", "run": "x"}]})
        answer = await who("bob").post("/v1/jobs", json={"jobs": jobs})
        assert (answer.status_code, said in answer.text) == (422, True), answer.text
        assert plane.loop.state.next_number == 1

    with_plane(scene)


def test_a_submission_has_a_bounded_number_of_patterns_to_compare_with_all_names():
    async def scene(plane, who):
        tasks = [{"run": "true", "after": [f"x{n}-{m}*" for m in range(15)]} for n in range(2)]
        answer = await who("ann").post("/v1/jobs", json={"jobs": tasks})
        assert (answer.status_code, "at most 20 different patterns" in answer.json()["detail"]) == (422, True)
        many = "&".join(f"select=x{n}*" for n in range(21))
        answer = await who("ann").get(f"/v1/jobs?{many}")
        assert (answer.status_code, "at most 20 different patterns" in answer.json()["detail"]) == (422, True)

    with_plane(scene)
