"""Plug-ins with mistakes, on wall time: the last decision stands, people are told, and it goes on when the mistake is gone.
In a simulation the mistake is an error."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from without_agents import PATIENCE_S, Scene

from fairlead.core.allocation import Allocation
from fairlead.core.device_map import ragged
from fairlead.core.errors import InvalidPlan
from fairlead.core.events import Memo
from fairlead.core.job import Job
from fairlead.core.plan import Launches, Placed, RoundPlan, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.engine.validate import validate_plan
from fairlead.placement.basic import Consolidated
from fairlead.policies.ranking.fifo import Fifo
from fairlead.runtime.control.views import job_record
from fairlead.testing import Harness, job
from fairlead.testing.builders import cluster
from scenes import state_of


@dataclass(frozen=True)
class Plugin:
    """Good while the gate is open."""

    gate: ClassVar[threading.Event]
    asked: ClassVar[list[list[int]]]

    def good(self, view: Snapshot) -> bool:
        self.asked.append(view.jobs.number.tolist())
        return self.gate.is_set()


class Forgetful(Plugin):
    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if not self.good(view):
            raise KeyError("ann's secret job")
        return Fifo().select(view, memo)


class KeepsASocket(Plugin):
    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return Fifo().select(view, memo)[0], memo if self.good(view) else {"socket": object()}


class SelectsStrangers(Plugin):
    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        one = np.array([1])
        return (Fifo().select(view, memo)[0] if self.good(view) else Selection(one + 98, one - 1, one)), memo


class Divides(Plugin):
    def allocate(self, view: Snapshot, memo: Memo) -> tuple[Allocation, Memo]:
        if not self.good(view):
            raise ZeroDivisionError("shares of nobody")
        return Allocation.alone(view.jobs.number, np.full((len(view.jobs), 1), 1.0)), memo


class WrongBeforeItFails(Plugin):
    """What it selects cannot be placed; when it has nothing left to say it fails."""

    says: ClassVar[list[Selection]]

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        if self.good(view):
            return Fifo().select(view, memo)
        return self.says.pop(), memo


class PilesUp(Plugin):
    """Everybody on the first accelerator."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        if self.good(view):
            return Consolidated().place(selection, view)
        new = ~np.isin(selection.jobs, view.jobs.runners.number)
        jobs, types = selection.jobs[new], selection.types[new]
        return Placed(view.jobs.runners.number, Launches(jobs, types, np.arange(len(jobs) + 1), np.zeros(len(jobs), np.int64)))


class Misplaces(Plugin):
    """On an accelerator that is not there."""

    def place(self, selection: Selection, view: Snapshot) -> Placed:
        if self.good(view):
            return Consolidated().place(selection, view)
        nowhere = np.full(len(selection), view.cluster.size)
        return Placed(
            np.array([], dtype=np.int64), Launches(selection.jobs, selection.types, np.arange(len(nowhere) + 1), nowhere)
        )


@pytest.mark.parametrize(
    ("stage", "plugin", "told"),
    [
        ("policy", Forgetful, "the policy failed: KeyError"),
        ("policy", KeepsASocket, "the scheduler failed"),
        ("policy", SelectsStrangers, "the scheduler failed"),
        ("policy", Divides, "the allocation failed: ZeroDivisionError"),
        ("placement", Misplaces, "the scheduler failed: InvalidPlan"),
        ("placement", PilesUp, "the scheduler failed: InvalidPlan"),
    ],
)
def test_a_mistake_in_a_plugin_does_not_end_the_control_plane(tmp_path, caplog, stage, plugin, told):
    scene = Scene(tmp_path, plugin, stage)
    plane, loop = scene.plane, scene.plane.loop
    getattr(loop.stages.policy, "allocator", loop.stages.policy)._background._wait_s = PATIENCE_S  # no answer is late

    async def story() -> None:
        plugin.gate.set()
        await scene.submit("first", workers=3 if plugin is PilesUp else 4)
        await scene.until(lambda: scene.runs(0))
        held = loop.state.device_map.of(0).tolist()
        plugin.gate.clear()
        await scene.submit("second")
        await scene.until(lambda: bool(plane.decision_health.message))
        decisions = loop.decisions
        await scene.until(lambda: loop.decisions > decisions + 2 and plane.decision_health.summary.startswith(told))
        if plugin is not Divides:  # newcomers have an agnostic share there, and take turns with the others
            assert (loop.state.device_map.of(0).tolist(), scene.starts(0)) == (held, 1)
            reason = job_record(loop, 1, plane.backend.now)["reason"]
            assert (reason["code"], scene.starts(1)) == ("no-decision", 0)
            assert "secret" not in reason["text"]
        plugin.gate.set()
        await scene.kept(lambda answered: plane.backend.cancel(0, answered))
        await scene.until(lambda: scene.runs(1) and not plane.decision_health.message)

    scene.play(story)
    assert sum("no new job starts" in line for line in caplog.messages) < loop.decisions, "not one line a round"
    assert b'fairlead_decisions_skipped_total{reason="failed"} 0.0' not in plane.metrics.text()


def test_a_selection_that_could_not_be_carried_out_does_not_stand(tmp_path):
    plugin = WrongBeforeItFails
    scene = Scene(tmp_path, plugin)
    plane, loop = scene.plane, scene.plane.loop

    async def story() -> None:
        plugin.gate.set()
        await scene.submit("first", workers=4)
        await scene.until(lambda: scene.runs(0))
        one = np.array([1])
        plugin.says = [Selection(one, one + 8, one)]  # of a type that is not there
        plugin.gate.clear()
        await scene.submit("second")
        await scene.until(lambda: plane.decision_health.summary == "the policy failed: IndexError" and not plugin.says)
        decisions = loop.decisions
        await scene.until(
            lambda: loop.decisions > decisions + 2 and plane.decision_health.summary == "the policy failed: IndexError"
        )
        assert (scene.runs(0), scene.starts(0), scene.starts(1)) == (True, 1, 0)
        plugin.gate.set()
        await scene.kept(lambda answered: plane.backend.cancel(0, answered))
        await scene.until(lambda: scene.runs(1) and not plane.decision_health.message)

    scene.play(story)


def launches(*gangs: list[int]) -> Launches:
    offsets, places = ragged(np.array(gang) for gang in gangs)
    jobs = np.arange(len(gangs))
    return Launches(jobs, 0 * jobs, offsets, places)


@pytest.mark.parametrize(
    ("starts", "together", "why"),
    [
        (launches([0, 1], [2, 3]), None, ""),
        (launches([1, 1]), None, "twice on one GPU"),
        (launches([0, 1], [1, 2]), None, "job 'job-0' and job 'job-1' on GPU 1"),
        (launches([0, 1], [0, 1]), None, "job 'job-0' and job 'job-1' on GPU 0"),
        (launches([0, 1], [0, 1]), [5, 5], ""),
        (launches([0, 1], [0, 1]), [5, 6], "job 'job-0' and job 'job-1' on GPU 0"),
        (launches([4, 5]), None, "job 'job-0' and job 'job-2' on GPU 4"),
        (launches([4, 5]), [7, 8, 7], ""),
    ],
)
def test_only_combinations_share_accelerators(starts, together, why):
    state = state_of(cluster("v100:6"), [Job(f"job-{n}", workers=2) for n in range(3)], {2: [4, 5]})
    colocated = None if together is None else (np.arange(len(together)), np.array(together))
    plan = RoundPlan(1.0, launches=starts, combinations=colocated)
    with pytest.raises(InvalidPlan, match=why) if why else nullcontext():
        validate_plan(plan, None, state.snapshot(1.0))


@pytest.mark.parametrize(
    ("mode", "starts", "why"),
    [
        ("static", launches([0, 1]), ""),
        ("static", launches([0, 1, 2]), "job 'one' was launched with 3 workers, not 2, and is not elastic"),
        ("static", replace(launches([0, 1]), batch_sizes=np.array([64])), "launched with batch size 64, and is not elastic"),
        ("gns", replace(launches([0, 1]), batch_sizes=np.array([-1])), "is not elastic"),
        ("elastic", replace(launches([0, 1, 2]), batch_sizes=np.array([-1])), ""),
    ],
)
def test_only_elastic_jobs_are_given_other_sizes(mode, starts, why):
    state = state_of(cluster("v100:6"), [Job("one", workers=2, mode=mode)])
    with pytest.raises(InvalidPlan, match=why) if why else nullcontext():
        validate_plan(RoundPlan(1.0, launches=starts), None, state.snapshot(1.0))


def test_in_a_simulation_a_mistake_is_an_error() -> None:
    Forgetful.gate, Forgetful.asked = threading.Event(), []
    harness = Harness().cluster("v100:4").policy(Forgetful()).submit(job("one"))
    with pytest.raises(KeyError):
        harness.round()
