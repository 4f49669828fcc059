"""What every policy keeps to, alone or with a mechanism that realises its shares."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import ClassVar

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.core.plan import Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Policy, Stages
from fairlead.engine.codec import encode
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing.builders import cluster, random_table
from fairlead.testing.contracts.scenes import SCENES, check_skipping, play
from fairlead.testing.invariants import check_events, check_reasons
from fairlead.workloads.throughput_tables import ThroughputTable

COSTS = Costs(10.0, 30.0, 5.0, 600.0)


class PolicyContract:
    """Set `make` to the policy's class, or to a function that makes one; `residents` where it puts jobs together, `everybody`
    where it gives other sizes to jobs that are not elastic too, which no real cluster lets it do. Fewer `jobs` take less time:
    for one of several variants."""

    make: ClassVar[Callable[[], Policy]]
    residents: ClassVar[int] = 1
    everybody: ClassVar[bool] = False
    jobs: ClassVar[int] = 24

    def stages(self, table: ThroughputTable, round_s: float = 300.0) -> Stages:
        standard = SchedulerConfig(round_s=round_s).build(table)
        return Stages(**{**standard.__dict__, "policy": type(self).make()})

    @classmethod
    @lru_cache(maxsize=len(SCENES))
    def _with_faults(cls, where: str, seed: int) -> tuple[State, list[ev.Event]]:
        """A run with costs, on nodes that fail; several tests look at the same one."""
        return play(cls().stages, where, seed, count=cls.jobs, costs=COSTS, faults=True)

    def test_every_job_ends_and_the_invariants_hold(self) -> None:
        for where, seed in SCENES:
            state, events = self._with_faults(where, seed)
            check_events(events, residents=self.residents)
            left = [Phase(p).name for p in state.all_jobs().phase.tolist() if p <= int(Phase.RUNNING)]
            assert not left, f"on {where} some jobs never ended: {left}"

    def test_it_works_without_rounds(self) -> None:
        for where, seed in SCENES[:2]:
            _, events = play(lambda table: self.stages(table, 0.0), where, seed, count=16)
            check_events(events, residents=self.residents)

    def test_the_same_inputs_give_the_same_bytes(self) -> None:
        where, seed = SCENES[1]
        _, events = play(self.stages, where, seed, count=self.jobs, costs=COSTS, faults=True)
        assert [encode(e) for e in events] == [encode(e) for e in self._with_faults(where, seed)[1]]

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        for where, seed in SCENES:
            _, stepping = play(self.stages, where, seed, count=self.jobs, skip=False, costs=COSTS, faults=True)
            blame = "a selection did not hold as long as it promised"
            check_skipping(self._with_faults(where, seed)[1], stepping, where, blame=blame)

    def test_a_selection_fits_and_is_a_function_of_the_snapshot(self) -> None:
        contract = self

        class Watched:
            """Asks twice, and checks what is answered."""

            def __init__(self) -> None:
                self.policy = type(contract).make()

            def select(self, view: Snapshot, memo: ev.Memo) -> tuple[Selection, ev.Memo]:
                again, _ = type(contract).make().select(view, memo)
                selection, memo = self.policy.select(view, memo)
                for what in ("jobs", "types", "workers", "combination"):
                    ours, fresh = (getattr(answer, what) for answer in (selection, again))
                    assert np.array_equal(ours, fresh), f"a fresh policy answers with other {what}: state outside the memo"
                contract.check_selection(selection, view)
                return selection, memo

        def stages(table: ThroughputTable) -> Stages:
            return Stages(**{**self.stages(table).__dict__, "policy": Watched()})

        for where, seed in SCENES:
            play(stages, where, seed, count=self.jobs)

    def test_whoever_waits_has_a_reason(self) -> None:
        for where, seed in SCENES:
            play(self.stages, where, seed, count=14, on_decision=check_reasons)

    def test_it_can_live_with_nothing_to_do(self) -> None:
        machine = cluster("v100:2")
        table = random_table(0, machine.type_names)
        loop = Loop(State(machine), SimulatedBackend(machine, table), self.stages(table))
        assert not loop.step().changes

    def check_selection(self, selection: Selection, view: Snapshot) -> None:
        numbers = selection.jobs.tolist()
        assert len(set(numbers)) == len(numbers), "a job is selected twice"
        assert set(numbers) <= set(view.jobs.number.tolist()), "somebody is selected who is not admitted"
        at = view.jobs.position_of(selection.jobs)
        assert ((view.jobs.fits[at] >> selection.types) & 1).all(), "a job is given a type on which it cannot run"
        rigid = ~view.elastic[at] & (not self.everybody)
        assert (selection.workers == view.jobs.workers[at])[rigid].all(), "a job that is not elastic is resized"
        if selection.batch_sizes is not None:
            assert not selection.batch_sizes[rigid].any(), "a job that is not elastic is given a batch size"
        combination = np.arange(len(numbers)) if selection.combination is None else selection.combination
        serving = np.array(sorted({place for route in selection.routes.values() for place in route.accelerators}), np.int64)
        alone = ~np.isin(selection.jobs, list(selection.routes))
        _, heads = np.unique(combination[alone], return_index=True)
        types, workers = (column[alone][heads] for column in (selection.types, selection.workers))
        used = np.bincount(types, weights=workers, minlength=len(view.capacity))
        used += np.bincount(view.cluster.type_of[serving], minlength=len(view.capacity))
        assert (used <= view.capacity).all(), f"{used.tolist()} accelerators selected, {view.capacity.tolist()} there are"
