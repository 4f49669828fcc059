"""The contracts of the stages: what every policy, placement, admission, termination and estimator keeps to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Ints
from fairlead.core.job import Phase
from fairlead.core.plan import Admitted, Observations, Rates, RoundPlan, Selection
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Admission, Estimator, LearningEstimator, Placement, Policy, Stages, Termination
from fairlead.engine.apply import replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.decide import ask_policy
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.testing.builders import cluster, random_table
from fairlead.testing.contracts.scenes import SCENES, check_skipping, encoded, play, play_searches
from fairlead.testing.invariants import check_events, check_reasons
from fairlead.workloads.throughput_tables import ThroughputTable

COSTS = Costs(10.0, 30.0, 5.0, 600.0)


class _StageContract:
    """A scheduler with the stage that is tried, and else the standard ones with policy `srtf`."""

    stage: ClassVar[str]  # its name in `Stages`
    make: ClassVar[Callable[..., Any]]

    def stages(self, table: ThroughputTable, round_s: float = 300.0, made: object = None) -> Stages:
        standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
        return replace(standard, **{self.stage: made or type(self).make(), "round_s": round_s})  # type: ignore[arg-type]


def _check_ended(state: State, where: str) -> None:
    left = [Phase(p).name for p in state.all_jobs().phase.tolist() if p <= int(Phase.RUNNING)]
    assert not left, f"on {where} some jobs never ended: {left}"


class PolicyContract(_StageContract):
    """Set `make` to the policy's class, or to a function that makes one; `residents` where it puts jobs together,
    `resizes_all` where it gives other sizes to jobs that are not elastic too, which no real cluster lets it do. Fewer
    `jobs` take less time: for one of several variants."""

    stage = "policy"
    make: ClassVar[Callable[[], Policy]]
    residents: ClassVar[int] = 1
    resizes_all: ClassVar[bool] = False
    jobs: ClassVar[int] = 24

    @classmethod
    @lru_cache(maxsize=len(SCENES))
    def _with_faults(cls, where: str, seed: int) -> tuple[State, list[ev.Event]]:
        """A run with costs, on nodes that fail; several tests look at the same one."""
        return play(cls().stages, where, seed, count=cls.jobs, costs=COSTS, faults=True)

    def test_every_job_ends_and_the_invariants_hold(self) -> None:
        for where, seed in SCENES:
            state, events = self._with_faults(where, seed)
            check_events(events, residents=self.residents)
            _check_ended(state, where)

    def test_it_works_without_rounds(self) -> None:
        for where, seed in SCENES[:2]:
            _, events = play(lambda table: self.stages(table, 0.0), where, seed, count=16)
            check_events(events, residents=self.residents)

    def test_the_same_inputs_give_the_same_bytes(self) -> None:
        where, seed = SCENES[1]
        _, events = play(self.stages, where, seed, count=self.jobs, costs=COSTS, faults=True)
        assert encoded(events) == encoded(self._with_faults(where, seed)[1])

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
                again, _ = ask_policy(type(contract).make(), view, memo)
                selection, memo = self.policy.select(view, memo)
                for what in ("jobs", "types", "workers", "combination"):
                    ours, fresh = (getattr(answer, what) for answer in (selection, again))
                    assert np.array_equal(ours, fresh), f"a fresh policy answers with other {what}: state outside the memo"
                contract.check_selection(selection, view)
                return selection, memo

        for where, seed in SCENES:
            play(lambda table: replace(self.stages(table), policy=Watched()), where, seed, count=self.jobs)

    def test_a_waiting_job_has_a_reason(self) -> None:
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
        assert set(numbers) <= set(view.jobs.number.tolist()), "a job is selected that is not admitted"
        at = view.jobs.position_of(selection.jobs)
        assert ((view.jobs.fits[at] >> selection.types) & 1).all(), "a job is given a type on which it cannot run"
        rigid = ~view.elastic[at] & (not self.resizes_all)
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
        assert (used <= view.capacity).all(), f"{used.tolist()} GPUs selected, {view.capacity.tolist()} there are"


class PlacementContract(_StageContract):
    """Set `make` to the placement's class, or to a function that makes one; `counts_hosts` where it knows CPUs and memory."""

    stage = "placement"
    make: ClassVar[Callable[[], Placement]]
    counts_hosts: ClassVar[bool] = False

    def test_gangs_are_whole_and_no_job_shares_uninvited(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, faults=True)
            check_events(events)
            _check_ended(state, where)

    def test_where_cpus_and_memory_are_scarce_every_job_ends_all_the_same(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, faults=True, hosts=True)
            check_events(events, hosts=self.counts_hosts)
            _check_ended(state, where)

    def test_who_stays_selected_stays_in_place(self) -> None:
        def watch(plan: RoundPlan, view: Snapshot) -> None:
            moved = set(plan.launches.jobs.tolist()) & set(plan.suspended.tolist())
            for number in moved:
                index = plan.launches.jobs.tolist().index(number)
                assert before[number] != int(plan.launches.types[index]), "a job was moved within its type for nothing"
            for number, type_ in zip(view.jobs.number.tolist(), view.jobs.type.tolist()):
                before[number] = type_

        for where, seed in SCENES:
            before: dict[int, int] = {}
            play(self.stages, where, seed, on_decision=watch)

    def test_it_is_a_function_of_its_arguments(self) -> None:
        where, seed = SCENES[1]
        first, second = (play(self.stages, where, seed)[1] for _ in range(2))
        assert encoded(first) == encoded(second)


class AdmissionContract(_StageContract):
    """Set `make` to the admission's class, or to a function that makes one."""

    stage = "admission"
    make: ClassVar[Callable[[], Admission]]

    def test_every_job_ends_and_the_invariants_hold(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, count=16, faults=True)
            check_events(events)
            _check_ended(state, where)

    def test_it_works_without_rounds(self) -> None:
        state, events = play(lambda table: self.stages(table, 0.0), *SCENES[1], count=16)
        check_events(events)
        _check_ended(state, SCENES[1][0])

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        for where, seed in SCENES:
            run = partial(play, self.stages, where, seed, count=14, faults=True)
            check_skipping(run(skip=True)[1], run(skip=False)[1], where, blame="it lets a job in by the clock alone")

    def test_a_job_that_is_not_admitted_has_a_reason(self) -> None:
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
                assert set(numbers) <= set(view.queued.number.tolist()), "a job is let in that does not wait for admission"
                fresh = type(contract).make().admit(view).jobs.tolist()
                assert fresh == numbers, "a fresh one lets others in: state outside of the snapshot"
                front = view.queued.only(np.arange(len(view.queued) // 2))
                first = type(contract).make().admit(view.with_changes(queued=front)).jobs.tolist()
                kept = [number for number in numbers if number in front.number]
                assert sorted(first) == sorted(kept), "whether a job enters depends on later jobs"
                return admitted

        for where, seed in SCENES:
            play(lambda table: self.stages(table, made=Watched()), where, seed, count=14)


class TerminationContract(_StageContract):
    """Set `make` to the termination's class, or to a function that makes one."""

    stage = "termination"
    make: ClassVar[Callable[[], Termination]]

    def test_every_job_ends_and_a_replay_gives_the_same_state(self) -> None:
        for where, seed in SCENES:
            state, events = play_searches(self.stages, where, seed)
            assert check_events(events).digest() == state.digest()
            _check_ended(state, where)

    def test_it_works_without_rounds(self) -> None:
        state, events = play_searches(lambda table: self.stages(table, 0.0), *SCENES[1], count=8)
        check_events(events)
        _check_ended(state, SCENES[1][0])

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        for where, seed in SCENES:
            for scene in (play_searches, play):  # where jobs report there are no quiet rounds; elsewhere there are
                ours, theirs = (scene(self.stages, where, seed, skip=skip)[1] for skip in (True, False))
                check_skipping(ours, theirs, where, blame="it ends a job by the clock alone")

    def test_it_ends_who_is_inside_once_and_is_a_function_of_the_snapshot(self) -> None:
        contract = self

        class Watched:
            """Asks twice, a fresh one about a copy too, and checks what is answered."""

            def __init__(self) -> None:
                self.termination = type(contract).make()

            def finished_early(self, view: Snapshot) -> Ints:
                ended = self.termination.finished_early(view)
                assert len(np.unique(ended)) == len(ended), "a job is ended twice"
                assert np.isin(ended, view.jobs.number).all(), "a job is ended that is not inside"
                for other in (view, view.detached()):
                    fresh = type(contract).make().finished_early(other)
                    assert np.array_equal(np.sort(fresh), np.sort(ended)), (
                        "a fresh one ends others: state outside of the snapshot"
                    )
                return ended

        for where, seed in SCENES:
            play_searches(lambda table: self.stages(table, made=Watched()), where, seed)


class EstimatorContract:
    """Set `make` to the estimator's class, or to a function that makes one from a table of true throughputs. Jobs run alone and
    in pairs; their estimates must be a function of the snapshot and its observations."""

    make: ClassVar[Callable[[ThroughputTable], Estimator]]
    policies: ClassVar[tuple[str, ...]] = ("srtf", "in pairs")

    def stages(
        self, policy: str, round_s: float = 300.0, make: Callable[[ThroughputTable], Estimator] | None = None
    ) -> Callable[[ThroughputTable], Stages]:
        """The scheduler that tests an estimator: shortest first, or two jobs on every accelerator."""

        def made(table: ThroughputTable) -> Stages:
            standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
            stages = replace(standard, estimator=(make or type(self).make)(table), round_s=round_s)
            return replace(stages, policy=InPairs()) if policy == "in pairs" else stages

        return made

    def test_every_job_ends_and_a_replay_gives_the_same_state(self) -> None:
        for policy in self.policies:
            for where, seed in SCENES[1:]:
                state, events = play(self.stages(policy), where, seed, costs=Costs(10.0, 30.0, 5.0, 600.0), faults=True)
                replayed = check_events(events, residents=2)
                _check_ended(state, where)
                assert replayed.digest() == state.digest()
                assert replayed.observations == state.observations
                decoded = replay_events([decode(encode(event)) for event in events])
                assert decoded.observations == state.observations, "facts that do not come back from a journal as they were"

    def test_it_works_without_rounds(self) -> None:
        for policy in self.policies:
            for where, seed in SCENES[:2]:
                _, events = play(self.stages(policy, 0.0), where, seed, count=16)
                check_events(events, residents=2)

    def test_the_same_inputs_give_the_same_bytes(self) -> None:
        for policy in self.policies:
            first, second = (play(self.stages(policy), *SCENES[1])[1] for _ in range(2))
            assert encoded(first) == encoded(second)

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        costs = Costs(launch_s=400.0, restart_s=20.0)  # longer than a round: at the first look there is nothing to see
        for policy in self.policies:
            for where, seed in SCENES[:2]:
                blame = "it could observe more before `valid_until`"
                run = partial(play, self.stages(policy), where, seed, costs=costs, faults=True)
                check_skipping(run(skip=True)[1], run(skip=False)[1], where, blame=blame, label=f"{policy} ")

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
                observed = self.estimator.observe(view)
                assert fresh.observe(view) == observed, "a new estimator observes something else: it has hidden state"
                again = self.estimator.observe(view.with_changes(observations={**view.observations, **observed.values}))
                assert not again.values, "the same was observed twice in one decision"
                assert again.valid_until == observed.valid_until
                return observed

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
        assert not (rates.of_jobs[table.alone[true] <= 0] > 0).any(), "an estimate is above 0 on a type that cannot run the job"
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
