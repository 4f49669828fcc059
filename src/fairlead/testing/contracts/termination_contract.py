"""The contract that every termination passes: in groups of jobs that report their losses, and beside some that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Ints
from fairlead.core.job import Job, Phase
from fairlead.core.rng import stream
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Stages, Termination
from fairlead.engine.codec import encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import cluster, random_jobs, random_table
from fairlead.testing.contracts.scenes import SCENES, play
from fairlead.testing.invariants import check_events
from fairlead.workloads.dynamics import LossCurve
from fairlead.workloads.throughput_tables import ThroughputTable


def random_searches(
    seed: int, count: int, *, table: ThroughputTable, largest: int = 4
) -> tuple[list[Job], dict[str, LossCurve]]:
    """`random_jobs`, two in three of them in groups, and loss curves for those and a few others."""
    rng = stream(seed, "testing", "searches")
    jobs, losses = [], {}
    for index, job in enumerate(random_jobs(seed, count, table=table, largest=largest)):
        together = index % 3 < 2
        jobs.append(replace(job, group=f"group-{index % 3}", group_order=index // 3) if together else job)
        if together or rng.random() < 0.5:
            floor = float(rng.uniform(0.1, 1.0))
            losses[job.name] = LossCurve(floor * float(rng.uniform(1.0, 20.0)), floor, float(rng.uniform(0.02, 0.3)))
    return jobs, losses


def play_searches(
    stages: Callable[[ThroughputTable], Stages], where: str, seed: int, *, count: int = 12, skip: bool = True
) -> tuple[State, list[ev.Event]]:
    """A random workload that reports losses on a small cluster with outages, to the end."""
    machine = cluster(where)
    table = random_table(seed, machine.type_names)
    jobs, losses = random_searches(seed, count, table=table, largest=min(4, int(machine.size_of_type.max())))
    faults = outage_events([Outage(0, 2000.0, 5000.0)])
    backend, journal = SimulatedBackend(machine, table, jobs, faults=faults, losses=losses), MemoryJournal()
    loop = Loop(State(machine), backend, stages(table), journal=journal, skip_quiet_rounds=skip)
    loop.record(ev.JournalOpened(0.0, machine, {}, "contract", None))
    loop.run()
    return loop.state, journal.events


class TerminationContract:
    """Set `make` to the termination's class, or to a function that makes one."""

    make: ClassVar[Callable[[], Termination]]

    def stages(self, table: ThroughputTable, round_s: float = 300.0, made: Termination | None = None) -> Stages:
        standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
        return Stages(**{**standard.__dict__, "termination": made or type(self).make(), "round_s": round_s})

    def test_every_job_ends_and_a_replay_gives_the_same_state(self) -> None:
        for where, seed in SCENES:
            state, events = play_searches(self.stages, where, seed)
            assert check_events(events).digest() == state.digest()
            assert (state.all_jobs().phase > int(Phase.RUNNING)).all()

    def test_it_works_without_rounds(self) -> None:
        state, events = play_searches(lambda table: self.stages(table, 0.0), *SCENES[1], count=8)
        check_events(events)
        assert (state.all_jobs().phase > int(Phase.RUNNING)).all()

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        for where, seed in SCENES:
            for scene in (play_searches, play):  # where jobs report there are no quiet rounds; elsewhere there are
                ours, theirs = ([encode(e) for e in scene(self.stages, where, seed, skip=s)[1]] for s in (True, False))
                assert ours == theirs, f"on {where} it ends somebody by the clock alone"

    def test_it_ends_who_is_inside_once_and_is_a_function_of_the_snapshot(self) -> None:
        contract = self

        class Watched:
            """Asks twice, a fresh one about a copy too, and checks what is answered."""

            def __init__(self) -> None:
                self.termination = type(contract).make()

            def finished_early(self, view: Snapshot) -> Ints:
                ended = self.termination.finished_early(view)
                assert len(np.unique(ended)) == len(ended), "a job is ended twice"
                assert np.isin(ended, view.jobs.number).all(), "somebody is ended who is not inside"
                for other in (view, view.detached()):
                    fresh = type(contract).make().finished_early(other)
                    assert np.array_equal(np.sort(fresh), np.sort(ended)), (
                        "a fresh one ends others: state outside of the snapshot"
                    )
                return ended

        for where, seed in SCENES:
            play_searches(lambda table: self.stages(table, made=Watched()), where, seed)
