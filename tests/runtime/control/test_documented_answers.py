"""The reference of the HTTP API names the fields that a control plane sends, no more and no fewer."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
from test_api import with_plane

from fairlead.core import events as ev
from fairlead.core.plan import Launches, RoundPlan

sys.path.append(str(Path(__file__).resolve().parents[3] / "docs"))

from generators.answers import JOB, JOB_SOMETIMES, LEDGER_ROW, NODE, ONE_JOB, USAGE


def test_the_fields_of_the_main_answers_are_documented():
    async def scene(plane, who):
        ann = who("ann")
        await ann.post("/v1/jobs", json={"jobs": [{"name": "a", "run": "x", "max_slowdown": 2}]})
        listed = (await ann.get("/v1/jobs")).json()["jobs"][0]
        one = (await ann.get("/v1/jobs/a")).json()
        assert JOB.keys() <= listed.keys() <= JOB.keys() | JOB_SOMETIMES.keys()
        assert {"max_slowdown", "reason", "next_decision_s"} <= listed.keys()
        assert JOB.keys() | ONE_JOB.keys() <= one.keys() <= JOB.keys() | ONE_JOB.keys() | JOB_SOMETIMES.keys()
        assert (await ann.get("/v1/nodes")).json()["nodes"][0].keys() == NODE.keys()
        while (await ann.get("/v1/jobs/a")).json()["phase"] == "queued":
            await asyncio.sleep(0.05)
        with plane.backend.lock:
            zero = np.array([0])
            plan = RoundPlan(plane.loop.state.time, launches=Launches(zero, zero, np.array([0, 1]), zero))
            plane.loop.record(ev.RoundPlanned(plan))
        while not (used := (await ann.get("/v1/usage")).json()["usage"]):
            await asyncio.sleep(0.05)
        assert used[0].keys() == USAGE.keys()
        assert (await ann.get("/v1/ledger")).json()["users"][0].keys() == LEDGER_ROW.keys()

    with_plane(scene)
