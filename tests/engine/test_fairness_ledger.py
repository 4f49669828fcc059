"""The fairness ledger over random histories, against sums that are made from the events in another way."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Node
from fairlead.core.errors import InputError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import decode, encode
from fairlead.engine.fairness_ledger import (
    SECOND,
    FairnessLedger,
    LedgerRules,
    max_min_shares,
    nanoseconds,
    remembered_time,
    rules_of,
)
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.journal.recovery import recover
from fairlead.journal.sqlite import SqliteJournal
from fairlead.testing.builders import cluster

RULES = {"half_life_s": 400.0, "accounts": {"lab": 2.0, "shop": 0.7}, "users": {"ann": 3.0}}
OPENED = ev.JournalOpened(0.0, cluster("v100:4,v100:3,k80:2"), {"policy": "fifo", "ledger": RULES}, journal="a cluster")
DAY_S = 86_400.0


def one(number: int) -> np.ndarray:
    return np.array([number], dtype=np.int64)


@dataclass
class History:
    """Random events that can happen, and the runs on GPUs that follow from them."""

    seed: int
    events: list[ev.Event] = field(default_factory=list)
    runs: list[tuple[int, str, str, tuple[int, ...], float, float]] = field(default_factory=list)  # with GPUs, start and end

    def __post_init__(self) -> None:
        self.draw, self.state = random.Random(self.seed), State(OPENED.cluster)
        self.now, self.begun = 0.0, dict[int, tuple[tuple[int, ...], float]]()
        self.put(OPENED)
        for _ in range(150):
            self.now += self.draw.choice([0.0, self.draw.uniform(0.001, 40.0)])
            self.draw.choice(
                [self.submit, self.admit, self.launch, self.launch, self.suspend, self.end, self.end, self.change]
            )()
        self.now += 5.0

    def put(self, event: ev.Event) -> None:
        apply_event(self.state, event)
        self.events.append(decode(encode(event)))

    def phase(self, *phases: int) -> list[int]:
        return [n for n in self.state.job_of if self.state.columns["phase"][n] in phases]

    def stop(self, number: int, second: float) -> None:
        job, (gpus, start) = self.state.job_of[number], self.begun.pop(number)
        self.runs.append((number, job.account, job.user, gpus, start, second))

    def submit(self) -> None:
        user, account = self.draw.choice(["ann", "bob", "cy", ""]), self.draw.choice(["lab", "shop", ""])
        job = Job("j", self.now, 100.0, workers=self.draw.choice([1, 1, 2, 3, 12]), user=user, account=account)
        self.put(ev.JobSubmitted(self.now, self.state.next_number, job))

    def admit(self) -> None:
        if len(queued := self.state.eligible):
            self.put(ev.RoundPlanned(RoundPlan(self.now, admitted=queued)))

    def launch(self, *, moved: int | None = None) -> None:
        """On any GPUs that are up, also on those of others, and at any size."""
        waiting, up = self.phase(1) if moved is None else [moved], np.flatnonzero(self.state.up).tolist()
        if not waiting or not up:
            return
        number = self.draw.choice(waiting)
        size = self.draw.randint(1, min(len(up), self.state.job_of[number].workers))
        gpus = self.draw.sample(up, size)
        suspended = one(number) if moved is not None else np.empty(0, dtype=np.int64)
        launches = Launches(one(number), self.state.cluster.type_of[gpus[:1]], np.array([0, size]), np.array(gpus))
        if moved is not None:
            self.stop(number, self.now)
        self.put(ev.RoundPlanned(RoundPlan(self.now, suspended=suspended, launches=launches)))
        self.begun[number] = tuple(gpus), self.now

    def suspend(self) -> None:
        if running := self.phase(2):
            number = self.draw.choice(running)
            if self.draw.random() < 0.3:
                self.launch(moved=number)
                return
            self.stop(number, self.now)
            self.put(ev.RoundPlanned(RoundPlan(self.now, suspended=one(number))))

    def end(self) -> None:
        if not (running := self.phase(2)):
            return
        number = self.draw.choice(running)
        second = self.draw.uniform(self.begun[number][1], self.now)  # reported late
        how = self.draw.randrange(5)
        self.stop(number, self.now if how > 2 else second)
        if how == 0:
            self.put(ev.JobsFinished(self.now, one(number), np.array([second])))
        elif how == 1:
            self.put(ev.JobsFailed(self.now, one(number), np.array([second]), "it failed"))
        elif how == 2:
            self.put(ev.JobsInterrupted(self.now, one(number), np.array([0.0]), stopped_s=second))
        else:
            self.put(ev.JobCancelled(self.now, number) if how == 3 else ev.JobRequeued(self.now, number))

    def change(self) -> None:
        node, how, jobs = self.draw.randrange(len(self.state.cluster.nodes)), self.draw.randrange(8), list(self.state.job_of)
        if how == 0:
            stopped_s = self.draw.uniform(self.state.time, self.now)
            self.put(ev.ControlPlaneRestarted(self.now, stopped_s))
        elif how == 1:
            rules = {**RULES, "half_life_s": self.draw.choice([400.0, 90.0]), "users": {"bob": 2.5}}
            self.put(ev.SchedulerSwitched(self.now, {"policy": "las", "ledger": rules}))
        elif how == 2:
            self.put(ev.NodeAdded(self.now, len(self.state.cluster.nodes), Node(f"n{len(self.events)}", "v100", 2)))
            self.put(ev.NodeRepaired(self.now, len(self.state.cluster.nodes) - 1))
        elif how == 3 and jobs and (waiting := self.phase(0, 1)):
            self.put(ev.JobHeld(self.now, self.draw.choice(waiting), "ann"))
            self.put(ev.JobReleased(self.now, next(iter(self.state.held))))
        elif how == 4 and jobs:
            self.put(ev.JobUpdated(self.now, self.draw.choice(jobs), {"account": self.draw.choice(["lab", "new"])}))
        elif how == 5 and (ended := self.phase(3, 4, 5)):
            self.put(ev.JobRequeued(self.now, self.draw.choice(ended)))
        elif how == 6:
            self.put(ev.NodeDrained(self.now, node, undo=self.draw.random() < 0.5))
        elif how == 7:
            self.put(self.draw.choice([ev.NodeLost, ev.NodeRepaired])(self.now, node))

    def all_runs(self) -> Iterator[tuple[str, str, tuple[int, ...], int, int]]:
        going_on = [(n, self.state.job_of[n].account, self.state.job_of[n].user, *self.begun[n], self.now) for n in self.begun]
        for _, account, user, gpus, start, end in (*self.runs, *going_on):
            yield account, user, gpus, nanoseconds(start), nanoseconds(end)


def ledger_of(state: State, now: float) -> FairnessLedger:
    assert state.ledger is not None
    return state.ledger.up_to(state, now)


def covered(times: list[tuple[int, int]]) -> int:
    edges = sorted({edge for time in times for edge in time})
    return sum(b - a for a, b in itertools.pairwise(edges) if any(start <= a and b <= end for start, end in times))


@pytest.mark.parametrize("seed", range(25))
def test_the_sum_over_users_is_the_gpu_time_of_the_journal_exactly(seed: int) -> None:
    history = History(seed)
    ledger = ledger_of(history.state, history.now)
    received: dict[tuple[str, str], int] = {}
    for account, user, gpus, start, end in history.all_runs():
        received[account, user] = received.get((account, user), 0) + len(gpus) * (end - start)
    assert {holder: row.received for holder, row in ledger.rows.items() if row.received} == {
        k: v for k, v in received.items() if v
    }
    by_gpu: dict[int, list[tuple[int, int]]] = {}
    for _, _, gpus, start, end in history.all_runs():
        for gpu in gpus:
            by_gpu.setdefault(gpu, []).append((start, end))
    physical = sum(covered(times) for times in by_gpu.values())
    assert sum(received.values()) - ledger.counted_twice == physical
    as_usage_counts = float(history.state.all_jobs().settled_accelerator_s.sum()) + sum(
        len(gpus) * (history.now - start) for gpus, start in history.begun.values()
    )
    assert sum(received.values()) / SECOND == pytest.approx(as_usage_counts)


@pytest.mark.parametrize("seed", range(25))
def test_what_users_deserve_sums_up_to_what_there_was_to_deserve(seed: int) -> None:
    """The same from slices of time, in fractions."""
    history = History(seed)
    ledger, expected, total = ledger_of(history.state, history.now), dict[tuple[str, str], Fraction](), Fraction(0)
    state, weights, before = replay_events(history.events[:1]), RULES, 0
    down: list[tuple[int, int]] = []

    def pass_time(start: int, end: int) -> None:
        nonlocal total
        demand: dict[str, dict[str, int]] = {}
        for number in state.live.tolist():
            job, of = state.job_of[number], state.columns
            users = demand.setdefault(job.account, {})
            users[job.user] = users.get(job.user, 0) + max(int(of["workers"][number]), int(of["held"][number]))
        room = min(Fraction(int(state.up.sum())), Fraction(sum(sum(users.values()) for users in demand.values())))
        total += room * (end - start)
        of_accounts = in_turn(room, {name: sum(users.values()) for name, users in demand.items()}, weights["accounts"])
        for account, share in of_accounts.items():
            for user, part in in_turn(share, demand[account], weights["users"]).items():
                expected[account, user] = expected.get((account, user), Fraction(0)) + part * (end - start)

    for event in history.events[1:]:
        now = nanoseconds(event.time)
        if isinstance(event, ev.ControlPlaneRestarted):
            pass_time(before, nanoseconds(event.stopped_s))
            down.append((nanoseconds(event.stopped_s), now))
        else:
            pass_time(before, now)
        apply_event(state, event)
        before, weights = now, event.scheduler["ledger"] if isinstance(event, ev.SchedulerSwitched) else weights
    pass_time(before, nanoseconds(history.now))
    for account, user, gpus, start, end in history.all_runs():  # during an outage a job deserves what it holds
        for first, last in down:
            held = len(gpus) * max(0, min(end, last) - max(start, first))
            expected[account, user] = expected.get((account, user), Fraction(0)) + held
            total += held
    assert sum(row.deserved for row in ledger.rows.values()) == ledger.demanded == total
    for holder, row in ledger.rows.items():
        assert abs(row.deserved - expected.get(holder, 0)) <= 3 * len(history.events)  # nanoseconds


def in_turn(room: Fraction, demand: dict[str, int], weights: dict[str, float]) -> dict[str, Fraction]:
    """Water-filling: raise all levels until the next demand is met."""
    given, open_ = dict.fromkeys(demand, Fraction(0)), {name for name, gpus in demand.items() if gpus}
    while room > 0 and open_:
        weight = {name: Fraction(round(weights.get(name, 1.0) * 10**6), 10**6) for name in open_}
        rise = min(room / sum(weight.values()), *((demand[name] - given[name]) / weight[name] for name in open_))
        for name in open_:
            given[name] += rise * weight[name]
        room -= rise * sum(weight.values())
        open_ = {name for name in open_ if given[name] < demand[name]}
    return given


@pytest.mark.parametrize("seed", range(15))
def test_a_replay_gives_the_same_bytes_also_from_a_snapshot(seed: int) -> None:
    history = History(seed)
    assert history.state.ledger is not None
    whole = history.state.ledger.save()
    again = replay_events(history.events)
    assert again.ledger is not None
    assert again.ledger.save() == whole
    cut = random.Random(seed).randrange(1, len(history.events))
    state = load(save(replay_events(history.events[:cut])))  # the events before are not needed any more
    ledger_of(state, state.time + 1.0)  # reading changes nothing
    for event in history.events[cut:]:
        apply_event(state, event)
    assert state.ledger is not None
    assert state.ledger.save() == whole
    assert save(state) == save(history.state)


@pytest.mark.parametrize("seed", range(10))
def test_recent_time_is_the_integral_with_a_half_life(seed: int) -> None:
    history = History(seed)
    if any(isinstance(event, ev.SchedulerSwitched) for event in history.events):
        history.events = [event for event in history.events if not isinstance(event, ev.SchedulerSwitched)]
        history.state = replay_events(history.events)
    ledger, expected = ledger_of(history.state, history.now), dict[tuple[str, str], float]()
    for account, user, gpus, start, end in history.all_runs():
        ages = [(history.now - second / SECOND) / 400.0 for second in (start, end)]
        seconds = len(gpus) * 400.0 / np.log(2) * (2 ** -ages[1] - 2 ** -ages[0])
        expected[account, user] = expected.get((account, user), 0.0) + seconds
    for holder, row in ledger.rows.items():
        assert row.recent_received / SECOND == pytest.approx(expected.get(holder, 0.0), rel=1e-9, abs=1e-6)


def test_time_is_halved_in_a_half_life() -> None:
    state = State(OPENED.cluster)
    for event in (
        OPENED,
        ev.JobSubmitted(0.0, 0, Job("a", 0.0, 1e6, workers=4, user="ann")),
        ev.JobSubmitted(0.0, 1, Job("b", 0.0, 1e6, workers=9, user="bob")),
        ev.RoundPlanned(RoundPlan(0.0, admitted=np.array([0, 1]))),
        ev.RoundPlanned(RoundPlan(0.0, launches=Launches(one(0), one(0), np.array([0, 4]), np.arange(4)))),
        ev.JobsFinished(100.0, one(0), np.array([100.0])),
        ev.JobCancelled(100.0, 1),
    ):
        apply_event(state, event)
    first, later = ledger_of(state, 100.0), ledger_of(state, 500.0)
    for holder in (("", "ann"), ("", "bob")):
        assert later.rows[holder].received == first.rows[holder].received
        assert later.rows[holder].deserved == first.rows[holder].deserved == (400 if holder[1] == "ann" else 500) * SECOND
        for name in ("recent_received", "recent_deserved"):
            assert getattr(later.rows[holder], name) == getattr(first.rows[holder], name) // 2
    assert first.rows["", "ann"].received == 400 * SECOND


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(1, 10**9)), min_size=1, max_size=8),
    st.integers(0, 10**16),
)
@settings(max_examples=300)
def test_shares_are_max_min_and_sum_up(entries: list[tuple[int, int]], total: int) -> None:
    demands, weights = [list(column) for column in zip(*entries)]
    shares = max_min_shares(total, demands, weights)
    assert sum(shares) == min(total, sum(demands))
    assert all(0 <= share <= demand for share, demand in zip(shares, demands))
    for i, share in enumerate(shares):
        for j, other in enumerate(shares):
            if share < demands[i] and other > 1:  # one whose demand is not met gets no less for its weight than any other
                assert (share + 1) * weights[j] >= (other - 1) * weights[i]


def test_remembered_time_agrees_with_floating_point() -> None:
    half_life = nanoseconds(7 * DAY_S)
    for start_s, end_s, now_s in (
        (0.0, 0.001, 0.001),
        (0.0, DAY_S, 30 * DAY_S),
        (5.0, 6.5, 7.0),
        (0.0, 400 * DAY_S, 400 * DAY_S),
    ):
        expected = 7 * DAY_S / np.log(2) * (np.exp2(-(now_s - end_s) / (7 * DAY_S)) - np.exp2(-(now_s - start_s) / (7 * DAY_S)))
        found = remembered_time(nanoseconds(start_s), nanoseconds(end_s), nanoseconds(now_s), half_life)
        assert found / SECOND == pytest.approx(expected, rel=1e-6)


def test_a_simulation_has_no_ledger() -> None:
    assert replay_events([ev.JournalOpened(0.0, OPENED.cluster, {"policy": "fifo"})]).ledger is None


def test_a_snapshot_of_an_earlier_version_begins_a_ledger() -> None:
    history = History(3)
    history.state.ledger = None
    state = load(save(history.state))
    assert state.ledger is not None
    assert state.ledger.since == nanoseconds(history.state.time)
    later = ledger_of(state, history.state.time + 10.0)
    held = sum(len(gpus) for gpus, _ in history.begun.values())
    assert sum(row.received for row in later.rows.values()) == held * (nanoseconds(history.state.time + 10.0) - later.since)


@pytest.mark.parametrize("seed", range(3))
def test_a_journal_that_has_dropped_its_events_recovers_the_ledger(seed: int, tmp_path: Path) -> None:
    history, journal = History(seed), SqliteJournal(tmp_path / "journal.sqlite")
    half = len(history.events) // 2
    for event in history.events[:half]:
        journal.append(event)
    journal.snapshot(replay_events(history.events[:half]))
    for event in history.events[half:]:
        journal.append(event)
    journal.retain(1, math.inf)
    assert len(list(journal)) == len(history.events) - half
    state, _ = recover(journal)
    journal.close()
    assert history.state.ledger is not None
    assert state.ledger is not None
    assert state.ledger.save() == history.state.ledger.save()


@pytest.mark.parametrize(
    ("ledger", "problem"),
    [
        ({"half_life_s": 0}, "seconds from 1 to 1e10"),
        ({"accounts": {"lab": -1}}, "a weight from 0.001 to 1e\\+06"),
        ({"halflife": 5}, "half_life_s"),
    ],
)
def test_a_wrong_rule_in_a_scheduler_file_is_refused(ledger: dict[str, object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        SchedulerConfig.from_data({"policy": "fifo", "ledger": ledger})


def test_the_rules_of_a_scheduler_file_get_into_the_journal() -> None:
    data = SchedulerConfig.from_data({"policy": "fifo", "ledger": RULES}).to_data()
    assert data["ledger"] == RULES
    assert rules_of(data).users == {"ann": 3.0}
    assert "ledger" not in SchedulerConfig.from_data({"policy": "fifo"}).to_data()


def test_accounts_of_a_tree_divide_what_the_account_above_them_deserves() -> None:
    """Of 12 GPUs, a (weight 2) deserves 8 and b 4. Of the 8, a/x can use 1; a/y and the jobs of a itself divide 7 by 6 : 1."""
    rules = LedgerRules(accounts={"a": 2.0, "a/y": 6.0})
    demand = {("a", "ann"): 9, ("a/x", "ann"): 1, ("a/y", "bob"): 9, ("b", "cy"): 9, ("b", "di"): 9}
    shares = FairnessLedger(rules=rules, capacity=12, demand=demand)._shares(SECOND)
    expected = {("a", "ann"): 1, ("a/x", "ann"): 1, ("a/y", "bob"): 6, ("b", "cy"): 2, ("b", "di"): 2}
    assert shares == {holder: gpus * SECOND for holder, gpus in expected.items()}


def test_accounts_of_old_journals_that_differ_by_a_slash_share_what_they_deserve_together() -> None:
    accounts = ("a", "a/", "", "/")
    ledger = FairnessLedger(rules=LedgerRules(), capacity=4, demand={(name, "ann"): 4 for name in accounts})
    shares = ledger._shares(SECOND)
    assert shares == {(name, "ann"): SECOND for name in accounts}
