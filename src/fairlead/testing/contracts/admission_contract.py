"""The contract that every admission passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.core.job import Phase
from fairlead.core.plan import Admitted
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Admission, Stages
from fairlead.engine.codec import encode
from fairlead.testing.contracts.scenes import SCENES, play
from fairlead.testing.invariants import check_events, check_reasons
from fairlead.workloads.throughput_tables import ThroughputTable


class AdmissionContract:
    """Set `make` to the admission's class, or to a function that makes one."""

    make: ClassVar[Callable[[], Admission]]

    def stages(self, table: ThroughputTable, round_s: float = 300.0, made: Admission | None = None) -> Stages:
        standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
        return Stages(**{**standard.__dict__, "admission": made or type(self).make(), "round_s": round_s})

    def test_nobody_waits_for_ever_and_the_invariants_hold(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, count=16, faults=True)
            check_events(events)
            left = [Phase(p).name for p in state.all_jobs().phase.tolist() if p <= int(Phase.RUNNING)]
            assert not left, f"on {where} some jobs never ended: {left}"

    def test_it_works_without_rounds(self) -> None:
        state, events = play(lambda table: self.stages(table, 0.0), *SCENES[1], count=16)
        check_events(events)
        assert (state.all_jobs().phase > int(Phase.RUNNING)).all()

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        for where, seed in SCENES:
            ours, theirs = (
                [encode(e) for e in play(self.stages, where, seed, count=14, skip=skip, faults=True)[1]]
                for skip in (True, False)
            )
            assert ours == theirs, f"on {where} it lets somebody in by the clock alone"

    def test_whoever_is_not_let_in_has_a_reason(self) -> None:
        for where, seed in SCENES:
            play(self.stages, where, seed, count=14, on_decision=check_reasons)

    def test_it_lets_in_who_is_there_once_whatever_comes_later_and_is_a_function_of_the_snapshot(self) -> None:
        contract = self

        class Watched:
            """Asks twice, and with a shorter queue, and checks what is answered."""

            def __init__(self) -> None:
                self.admission = type(contract).make()

            def admit(self, view: Snapshot) -> Admitted:
                admitted = self.admission.admit(view)
                numbers = admitted.jobs.tolist()
                assert len(set(numbers)) == len(numbers), "a job is let in twice"
                assert set(numbers) <= set(view.queued.number.tolist()), "somebody is let in who does not wait for admission"
                fresh = type(contract).make().admit(view).jobs.tolist()
                assert fresh == numbers, "a fresh one lets others in: state outside of the snapshot"
                front = view.queued.only(np.arange(len(view.queued) // 2))
                first = type(contract).make().admit(view.with_changes(queued=front)).jobs.tolist()
                kept = [number for number in numbers if number in front.number]
                assert sorted(first) == sorted(kept), "whether a job enters depends on who came later"
                return admitted

        for where, seed in SCENES:
            play(lambda table: self.stages(table, made=Watched()), where, seed, count=14)
