"""Leases with bounds, through the whole of it: real jobs ask, the control plane answers, and whoever is answered goes on."""

from __future__ import annotations

from collections import Counter

import pytest
from test_together import Together, all_ended, check_journal, run

from fairlead.core.cluster import Cluster
from fairlead.runtime.protocol.orders import Extend

pytestmark = pytest.mark.long


def test_jobs_with_bounds_ask_are_answered_and_do_every_step_once(tmp_path):
    leases = {
        "steps": (120, 0.1, {"max_steps": 40}),  # an answer that comes late leads to another launch, which asks again
        "time": (2000, 0.04, {"max_duration_s": 2.0}),
        "central": (40, 0.0, {"max_steps": 1, "renewal": "central"}),
    }
    renewals: Counter[int] = Counter()

    async def scene() -> None:
        async with Together(tmp_path, Cluster.parse("3xv100:3")) as together:
            send = together.plane.hub.send

            def count(node, order):
                renewals[order.job] += isinstance(order, Extend)
                send(node, order)

            together.plane.hub.send = count
            await together.submit(
                *(together.counting(name, *how, lease=lease) for name, (*how, lease) in leases.items()),
            )
            await together.until(lambda jobs: renewals[1] > 0)
            together.hurry("time")
            jobs = await together.until(lambda jobs: all_ended(jobs.values()))
        assert {job["phase"] for job in jobs.values()} == {"finished"}
        for name, (steps, _, _) in leases.items():
            assert together.steps_of(name) == list(range(steps))
        assert renewals[0] >= 1
        assert renewals[2] >= 39, "it asks before every step but the first"
        assert jobs["central"]["starts"] == 1, "who waits for the answer never leaves for want of one"
        check_journal(together.where)

    run(scene)


def test_a_job_under_central_renewal_is_preempted_and_goes_on(tmp_path):
    async def scene() -> None:
        async with Together(tmp_path, Cluster.parse("1xv100:1")) as together:
            central = {"max_steps": 1, "renewal": "central"}
            await together.submit(together.counting("central", 200, 0.1, lease=central))
            await together.until(lambda jobs: jobs["central"]["steps_done"] > 3)
            await together.submit(together.counting("other", 5, 0.02))
            await together.until(lambda jobs: jobs["central"]["preemptions"] > 0)
            together.hurry("central")
            jobs = await together.until(lambda jobs: all_ended(jobs.values()))
        assert {job["phase"] for job in jobs.values()} == {"finished"}
        assert together.steps_of("central") == list(range(200))

    run(scene)
