"""Limits on what users may set for their jobs: their weight, priority and so on."""

from __future__ import annotations

import pytest
from test_api import SCHEDULER, with_plane

from fairlead.config.schedulers import SchedulerConfig
from fairlead.config.user_limits import UserLimits
from fairlead.core.errors import InputError
from fairlead.core.job import Job

LIMITS = {
    "default": {"weight": 2, "max_slowdown": 1.5},
    "accounts": {"vision": {"priority": 5}},
    "users": {"bob": {"weight": 10, "min_run_s": 60, "time_limit_s": 3600}},
}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"weight": 1000}, "a: jobs of user 'ann' have a weight of at most 1, not 1000"),
        ({"priority": 1}, "jobs of user 'ann' have a priority of at most 0, not 1"),
        ({"min_run": "2h"}, "min_run_s of at most 3600, not 7200"),
    ],
)
def test_a_user_sets_nothing_above_the_default_limits_and_an_admin_anything(fields, said):
    async def scene(plane, who):
        for body in (
            {"jobs": [{"name": "a", "run": "x", **fields}]},
            {"jobs": [{"name": "a", "run": "x", **fields}], "dry_run": True},
        ):
            answer = await who("ann").post("/v1/jobs", json=body)
            assert (answer.status_code, said in answer.json()["detail"]) == (403, True), answer.text
        assert plane.loop.state.next_number == 0
        assert (await who("root").post("/v1/jobs", json={"jobs": [{"name": "a", "run": "x", **fields}]})).status_code == 201

    with_plane(scene)


def test_an_update_keeps_the_limits():
    async def scene(plane, who):
        ann, root = who("ann"), who("root")
        await ann.post("/v1/jobs", json={"jobs": [{"name": "a", "run": "x"}]})
        refused = await ann.patch("/v1/jobs/a", json={"weight": 5})
        assert (refused.status_code, "weight of at most 1, not 5" in refused.json()["detail"]) == (403, True)
        assert (await ann.patch("/v1/jobs/a", json={"priority": -5, "weight": 0.5})).status_code == 200
        assert (await root.patch("/v1/jobs/a", json={"weight": 5, "priority": 3})).status_code == 200
        assert (await ann.patch("/v1/jobs/a", json={"retries": 1})).status_code == 200, "what an admin has set stays"

    with_plane(scene)


def test_a_scheduler_has_limits_by_user_and_account():
    async def scene(plane, who):
        switched = await who("root").post("/v1/scheduler", json={"scheduler": {**SCHEDULER, "limits": LIMITS}})
        assert switched.status_code == 200, switched.text

        async def submit(user: str, **fields: object) -> str:
            answer = await who(user).post("/v1/jobs", json={"jobs": [{"run": "x", **fields}]})
            assert answer.status_code in (201, 403)
            return answer.json().get("detail", "")

        while "limits" not in plane.scheduler_in_use:
            await who("root").get("/v1/nodes")
        assert not await submit("ann", weight=2)
        assert "user 'ann' have a weight of at most 2" in await submit("ann", weight=3)
        assert "max_slowdown of at least 1.5, not 1" in await submit("ann", max_slowdown=1)
        assert not await submit("eve", priority=5)
        assert "account 'vision' have a priority of at most 5" in await submit("eve", priority=6)
        assert not await submit("bob", weight=10, time_limit="1h", min_run="1m")
        assert "time_limit_s of at most 3600, not none" in await submit("bob")
        assert "time_limit_s of at most 3600, not 7200" in await submit("bob", time_limit="2h")

    with_plane(scene)


def test_limits_are_part_of_a_scheduler_file(tmp_path):
    scheduler = SchedulerConfig.from_data({"policy": "las", "limits": LIMITS})
    (file := tmp_path / "scheduler.yaml").write_text(scheduler.to_yaml())
    assert SchedulerConfig.from_file(file) == scheduler
    assert scheduler.to_data()["limits"] == LIMITS
    assert "limits" not in SchedulerConfig.from_data({"policy": "las"}).to_data(), "as in earlier journals"
    for wrong in ({"everyone": {}}, {"default": {"wait": 1}}, {"users": {"ann": {"weight": "high"}}}, {"users": 3}):
        with pytest.raises(InputError):
            UserLimits.from_data(wrong)


def test_a_limit_of_an_account_holds_for_those_below_it_unless_they_have_their_own() -> None:
    limits = UserLimits.from_data({"accounts": {"lab": {"priority": 5, "weight": 2}, "lab/x": {"priority": 9}}})
    assert limits.refusal(Job("j", account="lab/x/ann", priority=9, weight=2.0)) == ""
    assert "account 'lab/x' have a priority of at most 9" in limits.refusal(Job("j", account="lab/x/ann", priority=10))
    assert "account 'lab' have a weight of at most 2" in limits.refusal(Job("j", account="lab/x/ann", weight=3.0))
    assert "account 'lab' have a priority of at most 5" in limits.refusal(Job("j", account="lab/y", priority=6))
    assert "priority of at most 0" in limits.refusal(Job("j", account="laboratory", priority=1))
