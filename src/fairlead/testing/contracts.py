"""The contracts that every plug-in passes. Subclass one in a test module, say what to make, and pytest does the rest."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fairlead.backends.faults import Outage, listed
from fairlead.backends.simulated import Simulated
from fairlead.backends.world import Costs
from fairlead.config import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import JournalError
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, Lesson, Rates, RoundPlan, Selection
from fairlead.core.reasons import Unplaced
from fairlead.core.snapshot import Snapshot
from fairlead.core.stages import Backend, Estimation, Learning, Placement, Policy, Stages
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import Journal, MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.testing.builders import asking_of_hosts, cluster, random_jobs, random_table, with_hosts
from fairlead.testing.invariants import check_events, check_reasons
from fairlead.workloads.profiles import ThroughputTable

SCENES = (("v100:4,v100:4", 0), ("v100:4,v100:2,k80:4,k80:1", 1), ("p100:8", 2))
"""Clusters and seeds on which policies and placements are tried."""


def play(
    stages: Callable[[ThroughputTable], Stages],
    where: str,
    seed: int,
    *,
    count: int = 24,
    skip: bool = True,
    costs: Costs | None = None,
    faults: bool = False,
    hosts: bool = False,
    on_decision: Callable[[RoundPlan, Snapshot], None] | None = None,
) -> tuple[State, list[ev.Event]]:
    """A random workload on a small cluster, to the end; the last state, and all that happened. With `hosts`, CPUs and host
    memory are scarce too."""
    machine = cluster(where)
    table = random_table(seed, machine.type_names)
    jobs = random_jobs(seed, count, table=table, largest=min(4, int(machine.size_of_type.max())))
    if hosts:
        machine, jobs = with_hosts(machine), asking_of_hosts(seed, jobs)
    outages = [Outage(0, 2000.0, 5000.0), Outage(len(machine.nodes) - 1, 9000.0, 9500.0)] if faults else []
    backend = Simulated(machine, table, jobs, costs=costs, faults=listed(outages))
    journal = MemoryJournal()
    loop = Loop(State(machine), backend, stages(table), journal=journal, skip_quiet_rounds=skip)
    if on_decision is not None:
        loop.on_decision = lambda plan: on_decision(plan, loop.state.snapshot(backend.now))
    loop.record(ev.Opened(0.0, machine, {}, "contract", None))
    loop.run()
    return loop.state, journal.events


class PolicyContract:
    """Set `make` to the policy's class, or to a function that makes one; `residents` where it puts jobs together."""

    make: ClassVar[Callable[[], Policy]]
    residents: ClassVar[int] = 1

    def stages(self, table: ThroughputTable, round_s: float = 300.0) -> Stages:
        standard = SchedulerConfig(round_s=round_s).build(table)
        return Stages(**{**standard.__dict__, "policy": type(self).make()})

    def test_every_job_ends_and_the_invariants_hold(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, costs=Costs(10.0, 30.0, 5.0, 600.0), faults=True)
            check_events(events, residents=self.residents)
            left = [Phase(p).name for p in state.everybody().phase.tolist() if p <= int(Phase.RUNNING)]
            assert not left, f"on {where} some jobs never ended: {left}"

    def test_it_works_without_rounds(self) -> None:
        for where, seed in SCENES[:2]:
            _, events = play(lambda table: self.stages(table, 0.0), where, seed, count=16)
            check_events(events, residents=self.residents)

    def test_the_same_inputs_give_the_same_bytes(self) -> None:
        where, seed = SCENES[1]
        first, second = (play(self.stages, where, seed)[1] for _ in range(2))
        assert [encode(e) for e in first] == [encode(e) for e in second]

    def test_skipping_quiet_rounds_changes_nothing(self) -> None:
        for where, seed in SCENES:
            skipping, stepping = (
                play(self.stages, where, seed, skip=skip, costs=Costs(restart_s=20.0), faults=True)[1] for skip in (True, False)
            )
            ours, theirs = [encode(e) for e in skipping], [encode(e) for e in stepping]
            where_from = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            assert ours == theirs, (
                f"on {where}, event {where_from} differs: {ours[where_from : where_from + 1]} when rounds are skipped, "
                f"{theirs[where_from : where_from + 1]} when they are not; a selection did not hold as long as it promised"
            )

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
            play(stages, where, seed)

    def test_whoever_waits_has_a_reason(self) -> None:
        for where, seed in SCENES:
            play(self.stages, where, seed, count=14, on_decision=check_reasons)

    def test_it_can_live_with_nothing_to_do(self) -> None:
        machine = cluster("v100:2")
        table = random_table(0, machine.type_names)
        loop = Loop(State(machine), Simulated(machine, table), self.stages(table))
        assert not loop.step().changes

    def check_selection(self, selection: Selection, view: Snapshot) -> None:
        numbers = selection.jobs.tolist()
        assert len(set(numbers)) == len(numbers), "a job is selected twice"
        assert set(numbers) <= set(view.jobs.number.tolist()), "somebody is selected who is not admitted"
        at = view.jobs.position_of(selection.jobs)
        assert ((view.jobs.fits[at] >> selection.types) & 1).all(), "a job is given a type on which it cannot run"
        combination = np.arange(len(numbers)) if selection.combination is None else selection.combination
        _, heads = np.unique(combination, return_index=True)
        used = np.bincount(selection.types[heads], weights=selection.workers[heads], minlength=len(view.capacity))
        assert (used <= view.capacity).all(), f"{used.tolist()} accelerators selected, {view.capacity.tolist()} there are"


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
            assert (state.everybody().phase > int(Phase.RUNNING)).all()

    def test_where_cpus_and_memory_are_scarce_every_job_ends_all_the_same(self) -> None:
        for where, seed in SCENES:
            state, events = play(self.stages, where, seed, faults=True, hosts=True)
            check_events(events, hosts=self.counts_hosts)
            assert (state.everybody().phase > int(Phase.RUNNING)).all()

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


class EstimationContract:
    """Set `make` to the estimation's class, or to a function that makes one of a table of true throughputs. Jobs run alone and
    in pairs; what the estimation says of them must be a function of the snapshot and of what it has learned."""

    make: ClassVar[Callable[[ThroughputTable], Estimation]]
    policies: ClassVar[tuple[str, ...]] = ("srtf", "in pairs")

    def stages(
        self, policy: str, round_s: float = 300.0, make: Callable[[ThroughputTable], Estimation] | None = None
    ) -> Callable[[ThroughputTable], Stages]:
        """The scheduler that an estimation is tried in: shortest first, or two jobs on every accelerator."""

        def made(table: ThroughputTable) -> Stages:
            standard = SchedulerConfig.from_data({"policy": "srtf"}).build(table)
            changes: dict[str, Any] = {"estimation": (make or type(self).make)(table), "round_s": round_s}
            if policy == "in pairs":
                changes["policy"] = InPairs()
            return Stages(**{**standard.__dict__, **changes})

        return made

    def test_every_job_ends_and_a_replay_gives_the_same_state(self) -> None:
        for policy in self.policies:
            for where, seed in SCENES[1:]:
                state, events = play(self.stages(policy), where, seed, costs=Costs(10.0, 30.0, 5.0, 600.0), faults=True)
                replayed = check_events(events, residents=2)
                assert (state.everybody().phase > int(Phase.RUNNING)).all()
                assert replayed.digest() == state.digest()
                assert replayed.learned == state.learned
                decoded = State.replay([decode(encode(event)) for event in events])
                assert decoded.learned == state.learned, "facts that do not come back from a journal as they were"

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
                skipping, stepping = (
                    play(self.stages(policy), where, seed, skip=skip, costs=costs, faults=True)[1] for skip in (True, False)
                )
                ours, theirs = [encode(e) for e in skipping], [encode(e) for e in stepping]
                at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
                assert ours == theirs, (
                    f"{policy} on {where}, event {at} differs: {ours[at : at + 1]} when rounds are skipped, "
                    f"{theirs[at : at + 1]} when they are not; there was more to learn than the lesson said"
                )

    def test_rates_are_a_function_of_the_snapshot(self) -> None:
        contract = self

        class Watched:
            """Asks a fresh one too, and checks what is answered."""

            def __init__(self, table: ThroughputTable) -> None:
                self.table, self.estimation = table, type(contract).make(table)

            def rates(self, view: Snapshot) -> Rates:
                mine, fresh = self.estimation.rates(view), type(contract).make(self.table).rates(view)
                for name in ("row", "alone", "spread", "paired", "uncertainty", "paired_uncertainty"):
                    ours, theirs = getattr(mine, name), getattr(fresh, name)
                    assert np.array_equal(ours, theirs), f"a fresh one has other {name}: state outside the facts"
                contract.check_rates(mine, view, self.table)
                return mine

        class WatchedLearning(Watched):
            def learn(self, view: Snapshot) -> Lesson:
                fresh = type(contract).make(self.table)
                assert isinstance(self.estimation, Learning)
                assert isinstance(fresh, Learning)
                lesson = self.estimation.learn(view)
                assert fresh.learn(view) == lesson, "a fresh one learns something else: state outside the facts"
                again = self.estimation.learn(view.but(learned={**view.learned, **lesson.facts}))
                assert not again.facts, "the same was learned twice at one moment"
                assert again.holds_until == lesson.holds_until
                return lesson

        def watched(table: ThroughputTable) -> Estimation:
            learns = isinstance(type(contract).make(table), Learning)
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
        return Selection(numbers, types, workers_of, combination=combination, holds_until=math.inf), memo

    def _runs(self, view: Snapshot, job: int, on: int) -> bool:
        return bool(int(view.jobs.fits[job]) >> on & 1 and view.rates.of_jobs[job, on] > 0)

    def _get_on(self, view: Snapshot, one: int, two: int, on: int) -> bool:
        a, b = int(view.rates.row[one]), int(view.rates.row[two])
        return self._runs(view, two, on) and bool(view.rates.paired[a, b, on] > 0 and view.rates.paired[b, a, on] > 0)


class JournalContract:
    """Give `open(path)`, which opens a journal in a folder, the same one each time; `keeps` is False for one that forgets when
    it is closed, `durable` is False for one whose commits do not outlive a writer that is killed."""

    keeps: ClassVar[bool] = True
    durable: ClassVar[bool] = True

    def open(self, folder: Path) -> Journal:
        raise TypeError("a journal's contract needs `open(folder)`")

    def test_events_come_back_as_they_went_in(self, tmp_path: Path) -> None:
        journal = self.open(tmp_path)
        events = every_event()
        for event in events:
            journal.append(event)
        assert [encode(e) for e in journal] == [encode(e) for e in events]
        journal.close()

    def test_commits_may_come_at_any_moment_and_change_nothing(self, tmp_path: Path) -> None:
        journal = self.open(tmp_path)
        events = every_event()
        journal.commit()
        for number, event in enumerate(events):
            journal.append(event)
            for _ in range(number % 3):
                journal.commit()
            assert [encode(e) for e in journal] == [encode(e) for e in events[: number + 1]]
        journal.close()

    def test_a_closed_journal_can_be_opened_and_continued(self, tmp_path: Path) -> None:
        if not self.keeps:
            return
        events = every_event()
        for part in (events[:3], events[3:]):
            journal = self.open(tmp_path)
            for event in part:
                journal.append(event)
            journal.close()
        journal = self.open(tmp_path)
        assert [encode(e) for e in journal] == [encode(e) for e in events]
        journal.close()

    def test_a_closed_journal_takes_no_more_and_can_be_closed_again(self, tmp_path: Path) -> None:
        if not self.keeps:
            return
        journal = self.open(tmp_path)
        journal.append(every_event()[0])
        journal.close()
        journal.close()
        try:
            journal.append(every_event()[1])
        except JournalError:
            return
        raise AssertionError("a closed journal took an event")

    def test_what_was_committed_outlives_a_writer_that_is_killed(self, tmp_path: Path) -> None:
        if not (self.keeps and self.durable):
            return
        events = every_event()
        for committed in (1, 7, len(events)):
            folder = tmp_path / str(committed)
            folder.mkdir()
            if (child := os.fork()) == 0:
                try:
                    journal = self.open(folder)
                    for number, event in enumerate(events):
                        journal.append(event)
                        if number + 1 == committed:
                            journal.commit()
                finally:
                    os.kill(os.getpid(), signal.SIGKILL)
            os.waitpid(child, 0)
            journal = self.open(folder)
            found = list(journal)
            assert len(found) >= committed
            assert [encode(e) for e in found] == [encode(e) for e in events[: len(found)]]
            for event in events[len(found) :]:
                journal.append(event)
            journal.commit()
            assert State.replay(journal).digest() == State.replay(events).digest()
            journal.close()

    def test_a_run_replays_to_the_same_state(self, tmp_path: Path) -> None:
        state, events = play(lambda table: SchedulerConfig.from_data({"policy": "las"}).build(table), *SCENES[1])
        journal = self.open(tmp_path)
        for event in events:
            journal.append(event)
        assert State.replay(journal).digest() == state.digest()
        journal.close()


class BackendContract:
    """Give `open(cluster, table, jobs)`, which makes a backend that these jobs will reach."""

    def open(self, machine: Cluster, table: ThroughputTable, jobs: list[Job]) -> Backend:
        raise TypeError("a backend's contract needs `open(cluster, table, jobs)`")

    def test_time_goes_forward_and_no_further_than_asked(self) -> None:
        backend, _ = self._backend()
        last = backend.now
        for until in (1.0, 5.0, 50.0):
            for event in backend.wait(until, 0.0):
                assert event.time <= until
            assert last <= backend.now <= until
            last = backend.now

    def test_what_is_launched_makes_progress_and_ends(self) -> None:
        backend, number = self._backend()
        told = [*backend.submit(self._launch(backend.now, number))]
        told += self._until(backend, (ev.JobsFinished,))
        assert any(isinstance(e, ev.ProgressReported) and number in e.jobs for e in told)
        finished = [e for e in told if isinstance(e, ev.JobsFinished)]
        assert number in finished[-1].jobs
        assert not math.isinf(finished[-1].time)

    def test_what_is_suspended_does_not_end(self) -> None:
        backend, number = self._backend()
        backend.submit(self._launch(backend.now, number))
        backend.wait(backend.now + 1.0, 0.0)
        backend.submit(RoundPlan(backend.now, suspended=np.array([number])))
        told = backend.wait(backend.now + 1000.0, 0.0)
        assert not any(isinstance(e, ev.JobsFinished) for e in told)

    def test_reconciling_tells_events(self) -> None:
        backend, _ = self._backend()
        machine = cluster("v100:2")
        assert all(isinstance(event, ev.Event) for event in backend.reconcile(State(machine).snapshot()))

    def _backend(self) -> tuple[Backend, int]:
        machine = cluster("v100:2")
        backend = self.open(machine, ThroughputTable.timed(machine.type_names), [Job("a", 0.0, 20.0)])
        told = self._until(backend, (ev.JobSubmitted,))
        return backend, next(e.number for e in told if isinstance(e, ev.JobSubmitted))

    def _until(self, backend: Backend, kinds: tuple[type[Any], ...]) -> list[ev.Event]:
        told: list[ev.Event] = []
        for _ in range(100):
            told += backend.wait(backend.now + 30.0, 0.0)
            if any(isinstance(event, kinds) for event in told):
                return told
        raise AssertionError(f"nothing of {kinds} happened in 100 waits")

    def _launch(self, now: float, number: int) -> RoundPlan:
        return RoundPlan(now, launches=Launches(np.array([number]), np.array([0]), np.array([0, 1]), np.array([1])))


def every_event() -> list[ev.Event]:
    """One of each, in an order that a journal could have."""
    one, machine = np.array([0]), cluster("v100:2")
    plan = RoundPlan(
        2.0,
        refused=((1, Unplaced.needs(8, "accelerators", of_at_most=2)),),
        admitted=one,
        launches=Launches(one, one * 0, np.array([0, 2]), np.array([0, 1]), np.array([32])),
    )
    return [
        ev.Opened(0.0, machine, {"policy": "fifo"}, "every event", {"|2": (1.0,)}),
        ev.JobSubmitted(1.0, 0, Job("a", 1.0, 100.0, workers=2, deadline_s=50.0, allowed_types=("v100",))),
        ev.JobSubmitted(1.5, 1, Job("b", 1.5, workers=8)),
        ev.RoundPlanned(plan),
        ev.MemoChanged(2.0, {"queues": [1, 2], "share": np.array([0.5])}),
        ev.FactsLearned(2.0, {"kind-0|1@v100": [[0, 0.5, 1.25]]}),
        ev.ProgressReported(2.0, one, np.array([0.0]), np.array([1.25]), np.array([2.5])),
        ev.MetricsReported(3.0, "loss", one, np.array([0.125])),
        ev.NodeLost(4.0, 0),
        ev.JobsInterrupted(4.0, one, np.array([1.0])),
        ev.NodeRepaired(5.0, 0),
        ev.NodeDrained(5.25, 0),
        ev.NodeDrained(5.5, 0, undo=True),
        ev.SchedulerSwitched(6.0, {"policy": "las"}, "a test"),
        ev.RoundPlanned(RoundPlan(7.0, launches=Launches(one, one * 0, np.array([0, 2]), np.array([0, 1])))),
        ev.RoundPlanned(RoundPlan(8.0, suspended=one)),
        ev.RoundPlanned(RoundPlan(9.0, launches=Launches(one, one * 0, np.array([0, 2]), np.array([1, 0])))),
        ev.JobsFinished(10.0, one, np.array([9.75])),
        ev.JobSubmitted(11.0, 2, Job("c", 11.0, after=(0,))),
        ev.JobCancelled(12.0, 2),
    ]
