"""A harness for scheduler tests: submit jobs, step round by round, inspect each decision. It is the real loop on the simulated
backend, and `check()` holds every event against the invariants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster
from fairlead.core.events import JournalOpened
from fairlead.core.job import Job, Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.reasons import Reason
from fairlead.core.stages import Policy, Stages
from fairlead.engine.decide import why_waiting
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import JobBuilder
from fairlead.testing.builders import cluster as build_cluster
from fairlead.testing.invariants import check_events, check_reasons
from fairlead.workloads.throughput_tables import ThroughputTable


@dataclass(frozen=True)
class Round:
    """What one decision did, by the names of jobs."""

    time: float
    launched: frozenset[str]
    suspended: frozenset[str]
    running: frozenset[str]
    waiting: frozenset[str]
    refused: frozenset[str]
    reasons: dict[str, Reason]
    plan: RoundPlan

    def reason(self, name: str) -> Reason:
        """Why a job does not run."""
        return self.reasons[name]


class Harness:
    """`Harness().cluster("v100:4").policy("las").submit(job("a")).round()`; other parts are the default scheduler's."""

    def __init__(
        self,
        scheduler: SchedulerConfig | None = None,
        *,
        table: ThroughputTable | None = None,
        costs: Costs | None = None,
        residents: int = 1,
    ) -> None:
        self._config = scheduler or SchedulerConfig()
        self._policy: Policy | None = None
        self._table, self._costs, self._residents = table, costs, residents
        self._cluster = build_cluster("v100:4")
        self._outages: list[Outage] = []
        self._early: list[Job] = []
        self.journal = MemoryJournal()
        self._loop: Loop | None = None

    def cluster(self, given: str | Cluster) -> Harness:
        """Set the cluster, as in `"v100:4,v100:4"` for two nodes; before the first round."""
        self._cluster = build_cluster(given) if isinstance(given, str) else given
        return self

    def policy(self, given: str | Policy, **parameters: object) -> Harness:
        """Set the policy by name with its parameters, or as an object; before the first round."""
        if isinstance(given, str):
            self._config = SchedulerConfig(Part(given, parameters), round_s=self._config.round_s)
        else:
            self._policy = given
        return self

    def outage(self, node: int, start_s: float, end_s: float) -> Harness:
        """Let a node be down for some time; before the first round."""
        self._outages.append(Outage(node, start_s, end_s))
        return self

    def submit(self, *jobs: JobBuilder | Job) -> Harness:
        """Submit jobs at any time."""
        for given in jobs:
            made = given.value if isinstance(given, JobBuilder) else given
            if self._loop is None:
                self._early.append(made)
            else:
                self._backend.add(made)
        return self

    def round(self) -> Round:
        """Go on to the next decision and take it."""
        loop = self.loop
        wake = self._backend.now if loop.decisions == 0 else self._backend.now + loop.stages.round_s
        for event in loop.backend.wait(wake, loop.stages.round_s):
            loop.record(event)
        plan = loop.step()
        view = loop.state.snapshot(self._backend.now)
        check_reasons(plan, view)
        names = loop.state.job_of
        return Round(
            plan.time,
            frozenset(names[n].name for n in plan.launches.jobs.tolist()),
            frozenset(names[n].name for n in plan.suspended.tolist()),
            self._named(view.jobs.number[view.jobs.running].tolist()),
            self._named([*view.jobs.number[~view.jobs.running].tolist(), *view.queued.number.tolist()]),
            frozenset(names[n].name for n, _ in plan.refused),
            self._reasons(plan),
            plan,
        )

    def run(self) -> Harness:
        """Go on to the end, and check every event."""
        self.loop.run()
        self.check()
        return self

    def check(self) -> None:
        """Hold every event against the invariants, and the replayed state against the live one."""
        if self.journal.events:
            replayed = check_events(self.journal.events, residents=self._residents)
            if replayed.digest() != self.loop.state.digest():
                raise AssertionError("replaying the journal gives another state")

    @property
    def loop(self) -> Loop:
        if self._loop is None:
            self._start()
        assert self._loop is not None
        return self._loop

    @property
    def state(self) -> State:
        return self.loop.state

    def number(self, name: str) -> int:
        """The number of a job."""
        return next(number for number, job in self.state.job_of.items() if job.name == name)

    def phase(self, name: str) -> Phase:
        """The phase of a job, such as `Phase.RUNNING`."""
        return Phase(int(self.state.columns["phase"][self.number(name)]))

    def ended_s(self, name: str) -> float:
        """When a job ended; NaN if it has not."""
        return float(self.state.columns["ended_s"][self.number(name)])

    def places(self, name: str) -> list[int]:
        """The numbers of the GPUs that a job holds."""
        return sorted(self.state.device_map.of(self.number(name)).tolist())

    def _start(self) -> None:
        table = self._table or ThroughputTable.timed(self._cluster.type_names)
        table = table.for_types(self._cluster.type_names)
        self._backend = SimulatedBackend(
            self._cluster, table, self._early, costs=self._costs, faults=outage_events(self._outages)
        )
        stages = self._config.build(table, Registry.installed())
        if self._policy is not None:
            stages = Stages(**{**stages.__dict__, "policy": self._policy})
        self._loop = Loop(State(self._cluster), self._backend, stages, journal=self.journal)
        self._loop.record(JournalOpened(0.0, self._cluster, self._config.to_data(), "harness", None))

    def _named(self, numbers: Sequence[int]) -> frozenset[str]:
        return frozenset(self.state.job_of[number].name for number in numbers)

    def _reasons(self, plan: RoundPlan) -> dict[str, Reason]:
        view = self.state.snapshot(self._backend.now)
        waiting = [*view.jobs.number[~view.jobs.running].tolist(), *view.queued.number.tolist()]
        waits = {self.state.job_of[n].name: why_waiting(plan, n, self.state.job_of[n], view) for n in waiting}
        return {**waits, **{self.state.job_of[n].name: reason for n, reason in self.state.refusals.items()}}
