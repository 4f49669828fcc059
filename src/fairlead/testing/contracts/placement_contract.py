"""What every placement keeps to."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fairlead.config import SchedulerConfig
from fairlead.core.job import Phase
from fairlead.core.plan import RoundPlan
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Placement, Stages
from fairlead.engine.codec import encode
from fairlead.testing.contracts.scenes import SCENES, play
from fairlead.testing.invariants import check_events
from fairlead.workloads.throughput_tables import ThroughputTable


class PlacementContract:
    """Set `make` to the placement's class, or to a function that makes one; `counts_hosts` where it knows CPUs and memory."""

    make: ClassVar[Callable[[], Placement]]
    counts_hosts: ClassVar[bool] = False

    def stages(self, table: ThroughputTable) -> Stages:
        standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
        return Stages(**{**standard.__dict__, "placement": type(self).make()})

    def test_gangs_are_whole_and_nobody_shares_uninvited(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, faults=True)
            check_events(events)
            assert (state.all_jobs().phase > int(Phase.RUNNING)).all()

    def test_where_cpus_and_memory_are_scarce_every_job_ends_all_the_same(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, faults=True, hosts=True)
            check_events(events, hosts=self.counts_hosts)
            assert (state.all_jobs().phase > int(Phase.RUNNING)).all()

    def test_who_stays_selected_stays_in_place(self) -> None:
        def watch(plan: RoundPlan, view: Snapshot) -> None:
            moved = set(plan.launches.jobs.tolist()) & set(plan.suspended.tolist())
            for number in moved:
                index = plan.launches.jobs.tolist().index(number)
                assert before[number] != int(plan.launches.types[index]), "a job was moved within its type for nothing"
            for number, kind in zip(view.jobs.number.tolist(), view.jobs.type.tolist()):
                before[number] = kind

        for where, seed in SCENES:
            before: dict[int, int] = {}
            play(self.stages, where, seed, on_decision=watch)

    def test_it_is_a_function_of_its_arguments(self) -> None:
        where, seed = SCENES[1]
        first, second = (play(self.stages, where, seed)[1] for _ in range(2))
        assert [encode(e) for e in first] == [encode(e) for e in second]
