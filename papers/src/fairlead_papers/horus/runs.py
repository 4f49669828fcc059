"""The case of Horus' studies: one workload under one policy, and what was seen of it second by second."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import yaml

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core.cluster import Cluster, Floats
from fairlead.core.events import Event, JobsFailed, JobsInterrupted
from fairlead.core.job import Phase
from fairlead.engine.apply import apply_event
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.state import State
from fairlead.experiments.cases import Answer, CaseFailed
from fairlead.experiments.inputs import ExperimentInputs
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.simulator.backend import OUT_OF_MEMORY
from fairlead.simulator.costs import Costs
from fairlead.workloads.trace import Trace
from fairlead_papers.horus.jobs import longest_first, trace
from fairlead_papers.horus.truth import H200, MeasuredPairs

ROUND_S, RESTART_S = 60.0, 30.0
SLO = 1.5
TRUTH = "oracle"
POINTS = 120


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: a label, and a policy as a scheduler file has it."""

    label: str
    policy: str


FIFO, OBP, PAB = Arm("FIFO", "fifo"), Arm("OBP", "opportunistic-packing"), Arm("PAB", "performance-aware-packing")
CHOOSING = "match: true, unpack: 1.2"
"""What the presets add to Horus' Algorithm 1."""
HORUS = Arm("Horus", f"{{name: horus, {CHOOSING}}}")
SOONEST = Arm("Horus for makespan", f"{{name: horus, {CHOOSING}, critical: true}}")
PLAIN = Arm("Horus, Algorithm 1", "horus")
TESTBED = (FIFO, PAB, OBP, HORUS, SOONEST, PLAIN)


@dataclass(frozen=True)
class Run:
    policy: str
    cluster: str
    workload: str
    jobs: int
    seed: int
    told: bool = False  # true slowdowns, in place of predictions
    longest_first: bool = False  # in the order of submission
    session: str = ""  # whose slowdowns are true, in place of the mean of all

    def run(self, inputs: ExperimentInputs) -> Answer:
        assert isinstance(inputs, MeasuredPairs)
        inputs = replace(inputs, session=self.session)
        estimator = TRUTH if self.told else inputs.believed()
        scheduler = {"policy": yaml.safe_load(self.policy), "estimator": estimator, "rounds": ROUND_S}
        jobs = trace(self.workload, self.jobs, inputs.trainings, self.seed)
        if self.longest_first:
            jobs = longest_first(jobs, inputs.trainings)
        jobs = inputs.submitted(jobs)
        machine = Cluster.parse(self.cluster, (H200,))
        config, journal = SchedulerConfig.from_data(scheduler, "study"), MemoryJournal()
        given = Simulation(jobs, machine, config, inputs.table, Costs(restart_s=RESTART_S), seed=self.seed)
        done = run_simulation(given, journal=journal).record.jobs
        if (done.phase != Phase.FINISHED).any():  # who fails ends early, which no makespan may gain by
            raise CaseFailed(f"{int((done.phase != Phase.FINISHED).sum())} of {len(done)} jobs did not finish")
        seen = Watch(inputs).over(journal)
        makespan, first = float(done.ended_s.max()), done.first_started_s
        return {
            "makespan_s": makespan,
            "jct_s": (done.ended_s - first).round(1).tolist(),
            "mean_jct_s": float((done.ended_s - first).mean()),
            "mean_jct_from_submission_s": float((done.ended_s - done.submitted_s).mean()),
            "wait_s": (first - done.submitted_s).round(1).tolist(),
            "suspended": int(done.preemptions.sum() + done.moves.sum()),
            "shared": seen.shared_s / seen.held_s,
            "shared_s": seen.shared_s,
            "out_of_memory": seen.out_of_memory,
            "longest_beyond_s": seen.longest_beyond_s,
            "beyond": seen.beyond_s / seen.job_s,
            "utilization": busy_s(jobs, inputs) / (machine.size * makespan),
            "busy": seen.line(makespan, machine.size),
        }


def busy_s(jobs: Trace, inputs: MeasuredPairs) -> float:
    """Accelerator time in which a kernel runs, in all: the same, whoever is beside whom."""
    share = {one.kind: one.utilization / 100 for one in inputs.trainings}
    table = inputs.table
    alone = (float(table.alone[table.row(job.kind, job.workers), 0]) for job in jobs.jobs)
    return sum(share[job.kind] * job.workers * job.steps / rate for job, rate in zip(jobs.jobs, alone))


@dataclass
class Watch:
    """What accelerators and jobs did, from the events of a run. A job is beyond its limit while it makes fewer steps per second
    than 1 / `SLO` of what it makes alone."""

    inputs: MeasuredPairs
    held_s: float = 0.0  # accelerator time with somebody on it, and
    shared_s: float = 0.0  # with two
    job_s: float = 0.0
    beyond_s: float = 0.0
    longest_beyond_s: float = 0.0
    out_of_memory: int = 0  # starts that failed for want of memory
    _busy: list[tuple[float, float]] = field(default_factory=list)
    _stretch: dict[int, float] = field(default_factory=dict)

    def over(self, events: Iterable[Event]) -> Watch:
        stream = iter(events)
        opened = next(stream)
        state, now = State(opened.cluster), 0.0  # type: ignore[union-attr]
        apply_event(state, opened)
        self._share = {one.kind: one.utilization / 100 for one in self.inputs.trainings}
        for event in stream:
            if event.time > now:
                self._pass(state, now, event.time)
                now = event.time
            apply_event(state, event)
            if isinstance(event, JobsInterrupted | JobsFailed) and event.why == OUT_OF_MEMORY:
                self.out_of_memory += len(event.jobs)
        return self

    def _pass(self, state: State, begin: float, end: float) -> None:
        seconds, occupancy, table = end - begin, state.device_map.occupancy, self.inputs.table
        self.held_s += seconds * int((occupancy > 0).sum())
        self.shared_s += seconds * int((occupancy > 1).sum())
        jobs = state.snapshot(begin).jobs.runners
        self.job_s += seconds * len(jobs)
        busy, stretch = 0.0, dict[int, float]()
        for number, rate, since in zip(jobs.number.tolist(), jobs.rate.tolist(), jobs.since_s.tolist()):
            job = state.job_of[number]
            makes_s = end - max(begin, since)  # who is starting makes no steps, and who begins to in between does from then on
            if makes_s <= 0:
                continue
            speed = rate / float(table.alone[table.row(job.kind, job.workers), 0])
            busy += self._share[job.kind] * speed * job.workers * makes_s / seconds
            if speed * SLO < 1 - 1e-9:
                stretch[number] = self._stretch.get(number, 0.0) + makes_s
                self.beyond_s += makes_s
        self._stretch = stretch
        self.longest_beyond_s = max(self.longest_beyond_s, *stretch.values(), 0.0)
        self._busy.append((begin, busy))

    def line(self, makespan: float, accelerators: int) -> list[list[float]]:
        """Minutes, and the percent of accelerator time in which a kernel runs, at even distances."""
        at: Floats = np.linspace(0.0, makespan, POINTS, endpoint=False)
        times, values = np.array(self._busy).T
        found = values[np.maximum(times.searchsorted(at, side="right") - 1, 0)]
        return [(at / 60).round(2).tolist(), (100 * found / accelerators).round(2).tolist()]


def mean_wait_s(answer: Answer) -> float:
    return float(np.mean(answer["wait_s"]))


def median_wait_s(answer: Answer) -> float:
    return float(np.median(answer["wait_s"]))


def percent(part: float) -> float:
    return 100 * part if math.isfinite(part) else part
