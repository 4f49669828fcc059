"""A run, its journal, its saved state and a fork of it agree, in the middle of it and up to the end, for every family of
schedulers: whoever goes on from any of them decides the same, and a fork in which nothing is changed is the run."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.job import ELASTIC, Job
from fairlead.core.rng import stream
from fairlead.core.stages import Stages
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode, encode_memo
from fairlead.engine.decide import decide
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.simulator.backend import Other, SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing.builders import asking_of_hosts, cluster, random_table, with_hosts
from fairlead.testing.contracts.scenes import random_searches
from fairlead.testing.invariants import check_events
from fairlead.workloads.dynamics import JobDynamics, RunConditions, Speed
from fairlead.workloads.throughput_tables import MeasuredTraining, colocation_table

ASKED = {"slo_ms": 100, "batches": [1, 32], "latency_ms": {"v100": [9, 40], "k80": [20, 90]}, "rate": 300}
NEEDS = {"kind-0": (20.0, 2.0), "kind-1": (55.0, 4.0), "kind-2": (95.0, 8.0), "kind-3": (20.0, 2.0)}
"""Percent of an accelerator and GB that a worker really takes."""
BELIEVED = {**{kind: list(need) for kind, need in NEEDS.items()}, "kind-2": [95.0, 4.0]}
SERVING = {"name": "nexus", "sessions": {f"job-{n}": ASKED for n in range(2, 16, 3)}}

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gangs, in strict order": {"policy": "fifo", "placement": "bandwidth-aware"},
    "least service, rates as seen": {"policy": "las", "estimator": "measured"},
    "by history": {"policy": {"name": "gittins", "min_history": 3}, "placement": "tiresias-plus"},
    "a chain at the door": {"policy": "srtf", "admission": [{"name": "user-job-quota", "default": 2}, "accept-up-to"]},
    "groups": {"policy": "srtf", "termination": {"name": "successive-halving", "eta": 2}},
    "shares": {"preset": "gavel"},
    "pairs, rates found out": {"policy": {"name": "max-min-fairness-perf", "space_sharing": True}, "estimator": "online"},
    "turns in company": {"preset": "gandiva"},
    "company, by prediction": {
        "policy": {"name": "horus", "match": True, "unpack": 1.2},
        "estimator": {"name": "predicted", "usage": BELIEVED},
        "rounds": 60,
    },
    "elastic, goodput": {"preset": "pollux", "rounds": 300},
    "elastic, soonest end": {"preset": "optimus"},
    "elastic, by type": {"policy": "sia", "estimator": "fitted", "rounds": 300},
    "sessions": {"policy": SERVING, "rounds": 60},
    "a plan of rounds": {"policy": {"name": "shockwave", "rounds": 6, "round_s": 300.0}, "estimator": "measured"},
    "leases": {"preset": "themis"},
    "hosts": {"policy": "las", "placement": {"name": "synergy", "cpus": {"kind-0": "1@0.6|6@2", "kind-2": "4@1|9@3"}}},
}


@dataclass(frozen=True)
class Stairs(JobDynamics):
    """Twice as fast after every `each` steps, at twice the batch size, up to a limit."""

    each: float
    more: float  # times the declared steps

    def speed(self, conditions: RunConditions) -> Speed:
        stair = min(int(conditions.steps / self.each + 1e-12), 3)
        return Speed(float(conditions.workers * 2**stair), math.inf if stair == 3 else (stair + 1) * self.each, 8 * 2**stair)

    def work(self, declared: float) -> float:
        return self.more * declared


@dataclass
class Scene:
    """Jobs that come after others, cancellations, a drain, reports, another scheduler for a while; and what starting costs."""

    family: str
    seed: int

    def __post_init__(self) -> None:
        self.machine = cluster("v100:2,v100:2,k80:2")
        self.table = random_table(self.seed, self.machine.type_names)
        self.config = SchedulerConfig.from_data(FAMILIES[self.family])
        self.costs = Costs(10.0, 30.0, 5.0, 600.0)
        jobs, losses = random_searches(self.seed, 16, table=self.table, largest=4)
        if self.family == "hosts":
            self.machine, jobs = with_hosts(self.machine), asking_of_hosts(self.seed, jobs)
        if self.family == "company, by prediction":  # where less memory is believed to be needed than is
            kinds = [MeasuredTraining(kind, 1.0, *need) for kind, need in NEEDS.items()]
            self.table = colocation_table("gpu", kinds, lambda one, other: 2.0 if "kind-3" in (one, other) else 1.1, (1, 2, 4))
            self.machine = Cluster(tuple(Node(f"n{i}", "gpu", 2) for i in range(2)), (AcceleratorType("gpu", 9.0),))
        grouped = self.family == "groups"
        jobs = [replace(job, group=job.group if grouped else "", retry_limit=n % 3) for n, job in enumerate(jobs)]
        jobs = [replace(job, mode=ELASTIC) if n % 3 == 2 else job for n, job in enumerate(jobs)]
        jobs.sort(key=lambda job: job.submitted_s)
        for number, other in ((5, 0), (9, 3), (12, 1), (14, 2)):
            jobs[number] = replace(jobs[number], after=(other,))
        turning = [job for job in jobs[::2] if job.mode != ELASTIC] if self.family != "hosts" else []
        self.dynamics = {job.name: Stairs(job.steps / (2 + n), 1 + 0.5 * (n % 2)) for n, job in enumerate(turning)}
        self.jobs, self.losses = jobs, losses if grouped else {}
        self.others = self._from_outside()

    def _from_outside(self) -> list[Other]:
        rng = stream(self.seed, "testing", "agreement")
        late = self.jobs[-1].submitted_s
        events: list[Other] = [ev.JobCancelled(max(9000.0, self.jobs[n].submitted_s), n) for n in (1, 4, 11)]
        events += [ev.NodeDrained(2500.0, 1), ev.NodeDrained(7000.0, 1, undo=True)]
        for second in rng.uniform(late / 2, late, 4).tolist():
            there = np.array([n for n, job in enumerate(self.jobs) if job.submitted_s < second])
            rates = rng.choice([0.0, 50.0, 900.0, 2000.0, math.nan], len(there))
            events.append(ev.MetricsReported(second, "request_rate", there, rates))
        las = SchedulerConfig.from_data({"policy": "las"}).to_data()
        return [*events, ev.SchedulerSwitched(8000.0, las), ev.SchedulerSwitched(9500.0, self.config.to_data())]

    def compose(self, data: Mapping[str, Any]) -> Stages:
        return SchedulerConfig.from_data(data).build(self.table)

    def begun(self) -> Loop:
        known = {"costs": self.costs, "losses": self.losses, "dynamics": self.dynamics, "others": self.others}
        backend = SimulatedBackend(self.machine, self.table, self.jobs, **known)
        stages = self.compose(self.config.to_data())
        loop = Loop(State(self.machine), backend, stages, MemoryJournal(), compose=self.compose)
        loop.record(ev.JournalOpened(0.0, self.machine, self.config.to_data()))
        return loop

    def fork(self, loop: Loop) -> Loop:
        """What goes on from this moment, by what can be sent to another process."""
        now = loop.backend.now
        view = pickle.loads(pickle.dumps(loop.state.snapshot(now).detached()))
        memo = decode(encode(ev.MemoChanged(now, loop.state.memo))).memo  # type: ignore[union-attr]
        later: list[Job] = [job for job in self.jobs if job.submitted_s > now]
        others = [event for event in self.others if event.time > now]
        known = {"costs": self.costs, "losses": self.losses, "dynamics": self.dynamics, "others": others}
        world = SimulatedBackend.from_snapshot(view, self.table, later, **known)
        return Loop(State.from_snapshot(view, memo), world, self.compose(loop.state.scheduler), compose=self.compose)


def decided(state: State, stages: Stages, now: float) -> tuple[object, ...]:
    """All that a decision at this moment says."""
    plan, memo = decide(state.snapshot(now, round_s=stages.round_s), state.memo, stages)
    said = (plan.valid_until, plan.revisit, plan.free, plan.up, plan.head, dict(plan.reasons), plan.not_admitted)
    return encode(ev.RoundPlanned(plan)), encode(ev.ObservationsRecorded(now, plan.observations)), encode_memo(memo), said


def fates(state: State) -> dict[int, tuple[object, ...]]:
    jobs = state.all_jobs()
    columns = (jobs.ended_s, jobs.phase, jobs.starts, jobs.base_steps)
    return {number: tuple(of) for number, *of in zip(jobs.number.tolist(), *(column.tolist() for column in columns))}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_journal_the_saved_state_and_a_fork_go_on_as_the_run_does(family):
    scene = Scene(family, seed=list(FAMILIES).index(family))
    loop, forks = scene.begun(), []
    for second in (4200.1, 8600.7, 11_111.1):
        loop.run(until=second)
        now, fork = loop.backend.now, scene.fork(loop)
        replayed, loaded = replay_events(decode(encode(event)) for event in loop.journal), load(save(loop.state))
        assert replayed.digest() == loaded.digest() == loop.state.digest()
        here = decided(loop.state, loop.stages, now)
        for other in (replayed, loaded, fork.state):  # by stages that have never been asked anything
            assert decided(other, scene.compose(loop.state.scheduler), now) == here
        forks.append((now, fork))
    loop.run()
    check_events(loop.journal, residents=2)
    whole = fates(loop.state)
    for now, fork in forks:
        fork.run()
        assert fates(fork.state) == {number: fate for number, fate in whole.items() if not fate[0] <= now}
