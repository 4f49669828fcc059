"""What is shown of others: that something is there, and no more."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from test_api import with_plane

from fairlead.core import events as ev
from fairlead.core.plan import Launches, RoundPlan


def test_a_user_sees_that_an_accelerator_is_held_and_not_by_what():
    async def scene(plane, who):
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": "hers", "run": "x", "kind": "secret"}]})
        while (await who("ann").get("/v1/jobs/hers")).json()["phase"] == "queued":
            await asyncio.sleep(0.05)
        with plane.backend.lock:
            now, one = plane.loop.state.time, np.array([0])
            plan = RoundPlan(now, launches=Launches(one, one, np.array([0, 1]), one))
            plane.loop.record(ev.RoundPlanned(plan))
            plane.decisions.add(plan)
            plane.loop.record(ev.ObservationsRecorded(now, {"measured 1 × secret on v100": 2.5}))
        seen = {name: (await who(name).get("/v1/overview")).json() for name in ("ann", "bob", "root")}
        held = {name: one["nodes"][0]["holders"] for name, one in seen.items()}
        assert held == {"ann": [["hers"], []], "bob": [[""], []], "root": [["hers"], []]}
        assert {name: len(one["jobs"]) for name, one in seen.items()} == {"ann": 1, "bob": 0, "root": 1}
        assert {name: len(one["decisions"]) for name, one in seen.items()} == {"ann": 1, "bob": 0, "root": 1}
        assert "hers" not in (await who("bob").get("/v1/nodes")).text
        rates = {name: (await who(name).get("/v1/rates")).json()["rates"] for name in ("ann", "bob", "root")}
        assert {name: len(one) for name, one in rates.items()} == {"ann": 1, "bob": 0, "root": 1}
        assert (await who("bob").put("/v1/nodes/v100-0/drain", content=b"")).status_code == 403
        told = (await who("root").put("/v1/nodes/v100-0/drain", content=b"")).json()
        assert (told["drained"], told["free"], told["jobs"]) == (True, 0, ["hers"])
        await who("root").delete("/v1/nodes/v100-0/drain")

    with_plane(scene)


def test_what_an_agent_brings_along_from_another_journal_is_shown_to_nobody():
    async def scene(plane, who):
        plane.backend.agent_joined(0, [(57, 1)])
        while not (await who("root").get("/v1/nodes")).json()["nodes"][0]["up"]:
            await asyncio.sleep(0.05)
        assert plane.backend.launches.jobs_on(0).keys() == {57}
        for path in ("/v1/nodes", "/v1/overview"):
            assert (await who("root").get(path)).json()["nodes"][0]["jobs"] == []

    with_plane(scene)


def test_who_shares_is_told_of_it_and_others_jobs_have_no_names():
    async def scene(plane, who):
        for name in ("ann", "bob"):
            task = {"name": f"of-{name}", "run": "x", "max_slowdown": 2.0}
            await who(name).post("/v1/jobs", json={"jobs": [task]})
        while (await who("bob").get("/v1/jobs/of-bob")).json()["phase"] == "queued":
            await asyncio.sleep(0.05)
        with plane.backend.lock:
            both, here = np.array([0, 1]), np.array([0, 0])
            plane.loop.record(
                ev.RoundPlanned(RoundPlan(plane.loop.state.time, launches=Launches(both, here, np.arange(3), here)))
            )
        told = {name: (await who(name).get("/v1/jobs/of-ann")).json() for name in ("ann", "root")}
        assert {name: one["colocated_with"] for name, one in told.items()} == {"ann": ["of another user"], "root": ["of-bob"]}
        assert told["ann"]["max_slowdown"] == 2.0
        assert (await who("ann").get("/v1/nodes")).json()["nodes"][0]["shared"] == 1

    with_plane(scene)


def test_a_job_over_a_quota_names_the_jobs_that_hold_it():
    async def scene(plane, who):
        await who("bob").post("/v1/jobs", json={"jobs": [{"name": "bob-1", "run": "x"}]})
        quota = {"name": "user-job-quota", "default": 2}
        plane.switch({"policy": "fifo", "estimator": "measured", "rounds": 0.2, "admission": quota}, "a test")
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": f"ann-{n}", "run": "x"} for n in range(3)]})
        while (seen := (await who("ann").get("/v1/jobs/ann-2")).json())["quota_jobs"] != ["ann-0", "ann-1"]:
            assert seen["phase"] == "queued"
            await asyncio.sleep(0.05)
        assert (await who("ann").get("/v1/jobs/ann-0")).json()["quota_jobs"] == []

    with_plane(scene)


@pytest.mark.parametrize(
    "quota",
    [{"name": "job-type-quota", "limits": {"net": 2}}, {"name": "job-resource-quota", "at_least": 2, "limit": 2}],
    ids=lambda quota: quota["name"],
)
def test_a_quota_of_a_model_or_a_size_names_its_jobs_and_hides_those_of_others(quota):
    async def scene(plane, who):
        plane.switch({"policy": "fifo", "estimator": "measured", "rounds": 0.2, "admission": quota}, "a test")
        task = {"run": "x", "kind": "net (batch size 8)", "workers": 2}
        for user, name in (("bob", "bob-1"), ("ann", "ann-1"), ("ann", "ann-2")):
            answer = await who(user).post("/v1/jobs", json={"jobs": [{"name": name, **task}]})
            assert answer.status_code == 201, answer.text
        while not (seen := (await who("ann").get("/v1/jobs/ann-2")).json())["quota_jobs"]:
            assert seen["phase"] == "queued"
            await asyncio.sleep(0.05)
        assert seen["quota_jobs"] == ["a job of another user", "ann-1"]
        assert (await who("root").get("/v1/jobs/ann-2")).json()["quota_jobs"] == ["bob-1", "ann-1"]

    with_plane(scene)


def test_an_agent_that_is_unreachable_is_shown_with_its_node_and_its_jobs():
    async def scene(plane, who):
        await who("ann").post("/v1/jobs", json={"jobs": [{"name": "hers", "run": "x"}]})
        while (await who("ann").get("/v1/jobs/hers")).json()["phase"] == "queued":
            await asyncio.sleep(0.05)
        assert (await who("ann").get("/v1/nodes")).json()["nodes"][0]["unreachable_s"] is None, "it has never joined"
        with plane.backend.lock:
            one = np.array([0])
            launch = Launches(one, one, np.array([0, 1]), one)
            plane.loop.record(ev.RoundPlanned(RoundPlan(plane.loop.state.time, launches=launch)))
        plane.hub._until[0] = plane.host.monotonic() + plane.hub.lease_s + plane.hub.grace_s - 20.0
        assert 20 <= (await who("ann").get("/v1/nodes")).json()["nodes"][0]["unreachable_s"] < 140
        assert 20 <= (await who("ann").get("/v1/jobs/hers")).json()["unreachable"]["v100-0"] < 140

    with_plane(scene)


def test_metrics_name_their_role_and_probes_may_use_head():
    async def scene(plane, who):
        refused = await who("ann").get("/metrics")
        assert (refused.status_code, "role metrics" in refused.json()["detail"]) == (403, True)
        assert (await who("nobody").head("/healthz")).status_code == 200

    with_plane(scene)
