"""One simulation: a trace on a cluster under a scheduler, and its record."""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig, simulated_with
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, check_number, require
from fairlead.core.events import Event, JournalOpened, NodeLost, NodeRepaired, SchedulerSwitched
from fairlead.core.job import Phase
from fairlead.core.reasons import Reason
from fairlead.engine.explain import why_not_running
from fairlead.engine.journal import Journal, MemoryJournal, NoJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.inputs import rates_with_dynamics, table_for, used_rates
from fairlead.experiments.run_record import RunRecord, record_of
from fairlead.experiments.serving import sessions_in
from fairlead.simulator.backend import Other, SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, either, outage_events, random_process
from fairlead.simulator.sessions import ServingResult
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace


@dataclass(frozen=True)
class Faults:
    """Node faults: a list of outages, and mean times of a seeded random process in seconds (0: none)."""

    outages: Sequence[Outage] = ()
    mean_up_s: float = 0.0
    mean_down_s: float = 3600.0

    def __post_init__(self) -> None:
        if not isinstance(self.outages, Sequence) or not all(isinstance(one, Outage) for one in self.outages):
            raise InputError("faults", "a list of Outage", field="outages", value=self.outages)
        most, least_down = sys.float_info.max, sys.float_info.min if self.mean_up_s else 0.0
        check_number("faults", "mean_up_s", self.mean_up_s, "finite seconds; 0: nodes do not fail", 0.0, most)
        check_number("faults", "mean_down_s", self.mean_down_s, "finite seconds above 0", least_down, most)

    def check_nodes(self, nodes: int) -> None:
        """Raise InputError where a node of an outage is not in a cluster of so many nodes."""
        for one in self.outages:
            require(one.node < nodes, "faults", f"a node from 0 to {nodes - 1}", "outages", one.node)

    def events(self, nodes: int, seed: int) -> Iterable[NodeLost | NodeRepaired]:
        self.check_nodes(nodes)
        listed = outage_events(self.outages)
        if self.mean_up_s <= 0:
            return listed
        drawn = random_process(nodes, self.mean_up_s, self.mean_down_s, seed)
        return either(listed, drawn) if self.outages else drawn


@dataclass(frozen=True)
class Simulation:
    """Everything that determines a run; the same values give the same events, byte for byte."""

    trace: Trace
    cluster: Cluster
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    table: ThroughputTable | None = None  # None: the bundled catalogue, or durations
    costs: Costs = field(default_factory=Costs)
    faults: Faults = field(default_factory=Faults)
    seed: int = 0
    measure: tuple[int, int] | None = None  # stop once these jobs (by submission) have ended
    fill_workers: bool = False
    skip_quiet_rounds: bool = True
    others: Sequence[Other] = ()  # further exogenous events, such as cancellations
    until_s: float = math.inf  # stop at this second


@dataclass(frozen=True)
class SimulationRun:
    """A simulation that has run."""

    record: RunRecord
    state: State
    loop: Loop


def run_simulation(
    given: Simulation,
    *,
    journal: Journal | None = None,
    registry: Registry | None = None,
    gantt: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> SimulationRun:
    """Run a simulation. `gantt` keeps device intervals; `on_progress` gets the share of jobs that have ended."""
    begun = begin(given, journal, registry, gantt=gantt)
    begun.loop.run(until=given.until_s, stop=stop_of(given, on_progress))
    if on_progress is not None:
        on_progress(1.0)
    return begun.finish(given)


@dataclass(frozen=True)
class Begun:
    """A simulation before its end."""

    loop: Loop
    table: ThroughputTable
    rates: Mapping[str, tuple[float, ...]]
    gantt: bool
    began_s: float = field(default_factory=time.perf_counter)

    def finish(self, given: Simulation) -> SimulationRun:
        """Close the journal and make the record."""
        loop = self.loop
        stopped = {}
        if given.until_s < math.inf and loop.state.busy:  # jobs run until then, though no event says so
            loop.state.time = max(loop.state.time, given.until_s)
            stopped = {"until_s": loop.state.time}
        facts = stopped | {
            "rounds": loop.rounds,
            "decisions": loop.decisions,
            "decide_s": loop.decide_s,
            "wall_s": time.perf_counter() - self.began_s,
            "peak_rss_mb": peak_rss_mb(),
        }
        events: list[Event] | None = list(loop.journal) if self.gantt else None
        loop.journal.close()
        record = record_of(loop.state, given.scheduler.label, given.trace.name, self.rates, facts, events)
        return SimulationRun(record, loop.state, loop)


def begin(given: Simulation, journal: Journal | None = None, registry: Registry | None = None, *, gantt: bool = False) -> Begun:
    """Build the loop and write the first event of the journal. `gantt` keeps device intervals, as changing prices do."""
    gantt = gantt or bool(given.cluster.price_changes_s)
    table = table_for(given.trace, given.cluster, given.table, fill=given.fill_workers)
    registry = registry or Registry.installed()
    faults = given.faults.events(len(given.cluster.nodes), given.seed)
    config = simulated_with(given.costs, given.scheduler)
    stages = config.build(table, registry)
    switches = (other.scheduler for other in given.others if isinstance(other, SchedulerSwitched))
    backend = SimulatedBackend(
        given.cluster,
        table,
        given.trace.jobs,
        costs=given.costs,
        faults=faults,
        others=given.others,
        losses=given.trace.losses,
        dynamics=given.trace.dynamics,
        sessions=sessions_in((given.scheduler.to_data(), *switches)),
    )
    loop = Loop(
        State(given.cluster),
        backend,
        stages,
        journal=journal or (MemoryJournal() if gantt else NoJournal()),
        skip_quiet_rounds=given.skip_quiet_rounds,
        compose=lambda data: simulated_with(given.costs, SchedulerConfig.from_data(data)).build(table, registry),
        stopwatch=time.perf_counter,
        decision_delay=given.costs.decision_delays(),
    )
    rates = {**used_rates(given.trace.jobs, table), **rates_with_dynamics(given.trace, table, given.cluster)}
    scheduler = {**config.to_data(), "name": config.label}
    loop.record(JournalOpened(0.0, given.cluster, scheduler, given.trace.name, rates))
    return Begun(loop, table, rates, gantt)


def requests_of(run: SimulationRun, seed: int = 0) -> ServingResult | None:
    """The served requests of a simulation's sessions, at most about four million; None without sessions."""
    world = run.loop.backend
    if not isinstance(world, SimulatedBackend) or world.sessions is None or not world.sessions.jobs:
        return None
    return world.sessions.history().sampled(4e6, seed=seed)


def left_waiting(run: SimulationRun) -> dict[str, Reason]:
    """The jobs that still wait at the end of a run, with reasons."""
    state, loop = run.state, run.loop
    waiting = sorted((*state.live.tolist(), *state.queue.tolist()))
    reasons = {state.job_of[number].name: why_not_running(state, loop.plan, number, loop.backend.now) for number in waiting}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def peak_rss_mb() -> float:
    """The largest resident memory of this process so far, in MB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20) if sys.platform == "darwin" else peak / 1024


def stop_of(given: Simulation, on_progress: Callable[[float], None] | None) -> Callable[[State], bool] | None:
    """A stop condition: the measured jobs have ended. It also reports progress."""
    total = len(given.trace)
    first, last = given.measure or (0, total)
    last = min(last, total)
    if given.measure is None and on_progress is None:
        return None
    running = int(Phase.RUNNING)
    calls, missing = 0, first  # all before `missing` have ended

    def stop(state: State) -> bool:
        nonlocal calls, missing
        calls += 1
        if on_progress is not None and calls % 64 == 0 and total:
            on_progress((state.next_number - len(state.live) - len(state.queue)) / total)
        if given.measure is None or state.next_number < last:
            return False
        phase = state.columns["phase"]
        while missing < last and phase.item(missing) > running:
            missing += 1
        return missing >= last

    return stop
