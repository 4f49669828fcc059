"""What every estimation keeps to, and the policy that shows it jobs in company."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np

from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.job import Phase
from fairlead.core.plan import Observations, Rates, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Estimator, LearningEstimator, Stages
from fairlead.engine.codec import decode, encode
from fairlead.engine.state import State
from fairlead.simulator.costs import Costs
from fairlead.testing.contracts.scenes import SCENES, check_skipping, play
from fairlead.testing.invariants import check_events
from fairlead.workloads.throughput_tables import ThroughputTable


class EstimatorContract:
    """Set `make` to the estimation's class, or to a function that makes one of a table of true throughputs. Jobs run alone and
    in pairs; what the estimation says of them must be a function of the snapshot and of what it has learned."""

    make: ClassVar[Callable[[ThroughputTable], Estimator]]
    policies: ClassVar[tuple[str, ...]] = ("srtf", "in pairs")

    def stages(
        self, policy: str, round_s: float = 300.0, make: Callable[[ThroughputTable], Estimator] | None = None
    ) -> Callable[[ThroughputTable], Stages]:
        """The scheduler that an estimation is tried in: shortest first, or two jobs on every accelerator."""

        def made(table: ThroughputTable) -> Stages:
            standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
            changes: dict[str, Any] = {"estimator": (make or type(self).make)(table), "round_s": round_s}
            if policy == "in pairs":
                changes["policy"] = InPairs()
            return Stages(**{**standard.__dict__, **changes})

        return made

    def test_every_job_ends_and_a_replay_gives_the_same_state(self) -> None:
        for policy in self.policies:
            for where, seed in SCENES[1:]:
                state, events = play(self.stages(policy), where, seed, costs=Costs(10.0, 30.0, 5.0, 600.0), faults=True)
                replayed = check_events(events, residents=2)
                assert (state.all_jobs().phase > int(Phase.RUNNING)).all()
                assert replayed.digest() == state.digest()
                assert replayed.observations == state.observations
                decoded = State.replay([decode(encode(event)) for event in events])
                assert decoded.observations == state.observations, "facts that do not come back from a journal as they were"

    def test_it_works_without_rounds(self) -> None:
        for policy in self.policies:
            for where, seed in SCENES[:2]:
                _, events = play(self.stages(policy, 0.0), where, seed, count=16)
                check_events(events, residents=2)

    def test_the_same_inputs_give_the_same_bytes(self) -> None:
        for policy in self.policies:
            first, second = (play(self.stages(policy), *SCENES[1])[1] for _ in range(2))
            assert [encode(e) for e in first] == [encode(e) for e in second]

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        costs = Costs(launch_s=400.0, restart_s=20.0)  # longer than a round: at the first look there is nothing to see
        for policy in self.policies:
            for where, seed in SCENES[:2]:
                blame = "there was more to learn than the lesson said"
                run = partial(play, self.stages(policy), where, seed, costs=costs, faults=True)
                check_skipping(run(skip=True)[1], run(skip=False)[1], where, blame=blame, who=f"{policy} ")

    def test_rates_are_a_function_of_the_snapshot(self) -> None:
        contract = self

        class Watched:
            """Asks a fresh one too, and checks what is answered."""

            def __init__(self, table: ThroughputTable) -> None:
                self.table, self.estimator = table, type(contract).make(table)

            def rates(self, view: Snapshot) -> Rates:
                mine, fresh = self.estimator.rates(view), type(contract).make(self.table).rates(view)
                for name in ("row", "alone", "spread", "paired", "uncertainty", "paired_uncertainty"):
                    ours, theirs = getattr(mine, name), getattr(fresh, name)
                    assert np.array_equal(ours, theirs), f"a fresh one has other {name}: state outside the facts"
                contract.check_rates(mine, view, self.table)
                return mine

        class WatchedLearning(Watched):
            def observe(self, view: Snapshot) -> Observations:
                fresh = type(contract).make(self.table)
                assert isinstance(self.estimator, LearningEstimator)
                assert isinstance(fresh, LearningEstimator)
                lesson = self.estimator.observe(view)
                assert fresh.observe(view) == lesson, "a fresh one learns something else: state outside the facts"
                again = self.estimator.observe(view.with_changes(observations={**view.observations, **lesson.values}))
                assert not again.values, "the same was learned twice at one moment"
                assert again.valid_until == lesson.valid_until
                return lesson

        def watched(table: ThroughputTable) -> Estimator:
            learns = isinstance(type(contract).make(table), LearningEstimator)
            return WatchedLearning(table) if learns else Watched(table)

        for policy in self.policies:
            for where, seed in SCENES[:2]:
                play(self.stages(policy, make=watched), where, seed, count=10)

    def check_rates(self, rates: Rates, view: Snapshot, table: ThroughputTable) -> None:
        types = len(view.capacity)
        assert rates.row.shape == (len(view.jobs),)
        rows = len(rates.alone)
        assert rates.alone.shape == rates.spread.shape == (rows, types)
        assert rates.paired.shape == (rows, rows, types)
        assert not len(rates.row) or (rates.row.min() >= 0 and rates.row.max() < rows)
        for array in (rates.alone, rates.spread, rates.paired, rates.uncertainty, rates.paired_uncertainty):
            assert array is None or (np.isfinite(array).all() and (array >= 0).all())
        assert rates.uncertainty is None or rates.uncertainty.shape == rates.alone.shape
        assert rates.paired_uncertainty is None or rates.paired_uncertainty.shape == rates.paired.shape
        true = np.array([table.row(view.job_of[n].kind, view.job_of[n].workers) for n in view.jobs.number.tolist()], np.int64)
        assert not (rates.of_jobs[table.alone[true] <= 0] > 0).any(), "a job is said to run where it cannot"
        assert np.array_equal(rates.runs_on, Rates(rates.row, rates.alone, rates.spread, rates.paired).runs_on)
        assert np.array_equal(rates.fastest, rates.of_jobs.max(axis=1, initial=0.0))


class InPairs:
    """A policy for contracts: jobs in order of submission, two together where both make progress, on the fastest free type."""

    def select(self, view: Snapshot, memo: ev.Memo) -> tuple[Selection, ev.Memo]:
        jobs, rates, free = view.jobs, view.rates, view.capacity.tolist()
        chosen: list[tuple[int, int, int, int]] = []
        left = list(range(len(jobs)))
        while left:
            one = left.pop(0)
            workers = int(jobs.workers[one])
            for on in np.argsort(-rates.of_jobs[one], kind="stable").tolist():
                if free[on] < workers or not self._runs(view, one, on):
                    continue
                mates = (two for two in left if int(jobs.workers[two]) == workers and self._get_on(view, one, two, on))
                mate = next(mates, None)
                free[on] -= workers
                chosen.append((int(jobs.number[one]), on, workers, one))
                if mate is not None:
                    left.remove(mate)
                    chosen.append((int(jobs.number[mate]), on, workers, one))
                break
        numbers, types, workers_of, combination = np.ascontiguousarray(np.array(chosen, dtype=np.int64).reshape(-1, 4).T)
        return Selection(numbers, types, workers_of, combination=combination, valid_until=math.inf), memo

    def _runs(self, view: Snapshot, job: int, on: int) -> bool:
        return bool(int(view.jobs.fits[job]) >> on & 1 and view.rates.of_jobs[job, on] > 0)

    def _get_on(self, view: Snapshot, one: int, two: int, on: int) -> bool:
        a, b = int(view.rates.row[one]), int(view.rates.row[two])
        return self._runs(view, two, on) and bool(view.rates.paired[a, b, on] > 0 and view.rates.paired[b, a, on] > 0)
