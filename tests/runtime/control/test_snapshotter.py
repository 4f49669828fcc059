"""Snapshots that a running control plane takes by itself, what it forgets, and what it finds when it comes back."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.errors import InputError, JournalError
from fairlead.engine.apply import replay_events
from fairlead.engine.state import State
from fairlead.journal.recovery import open_journal, read_journal, recover
from fairlead.journal.sql_journal import DatabaseJournal
from fairlead.runtime.control import snapshotter as keeping
from fairlead.runtime.control.control_plane import ControlPlane
from fairlead.runtime.control.snapshotter import DAY_S, Retention
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.testing.builders import cluster

PATIENCE_S = 120.0
SCHEDULER = {"policy": "las", "rounds": 0.1, "first_step_s": 0}  # jobs of an agent that is not there change places all the time


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch):
    monkeypatch.setattr(keeping, "CHECK_EVERY_S", 0.01)


def opened(where: Path) -> DatabaseJournal:
    journal = open_journal(str(where / "journal.sqlite"))
    assert isinstance(journal, DatabaseJournal)
    return journal


def run_plane(
    where: Path, rules: Retention, jobs: int, reached: Callable[[DatabaseJournal], bool], *, more: bool = False
) -> State:
    """A plane that takes so many jobs, one after the other (and `more`), and ends when the journal looks as it should."""
    journal = opened(where)
    state = recover(journal)[0] if journal.last else None
    plane = ControlPlane(cluster("v100:2"), SCHEDULER, compose, journal, state, retention=rules)

    async def submit() -> None:
        loop, kept = asyncio.get_running_loop(), asyncio.Event()
        job = TaskSpec(run="true").job("", "ann")
        plane.backend.submit_jobs([job], lambda events: loop.call_soon_threadsafe(kept.set))
        await kept.wait()

    async def story() -> None:
        await plane.start()
        plane.backend.agent_joined(0, ())
        for _ in range(jobs):
            await submit()
        while not await asyncio.to_thread(reached, journal):
            assert plane.failure is None
            await (submit() if more else asyncio.sleep(0.02))
        await plane.stop()

    asyncio.run(asyncio.wait_for(story(), PATIENCE_S))
    assert plane.failure is None
    return plane.loop.state


def snapshots(journal: DatabaseJournal) -> list[int]:
    return [seq for seq, _ in journal.snapshots()]


def test_a_plane_that_comes_back_goes_on_from_its_snapshot_and_the_tail(tmp_path):
    rules = Retention(every_events=10, every_s=1e6, snapshots=2)
    before = run_plane(tmp_path, rules, 30, lambda journal: len(snapshots(journal)) == 2)
    journal = opened(tmp_path)
    taken = snapshots(journal)
    asked: list[int] = []
    tail = journal.after
    journal.after = lambda seq: asked.append(seq) or tail(seq)  # type: ignore[method-assign]
    state, last = recover(journal)
    journal.close()
    assert (state.digest(), asked) == (before.digest(), [taken[0]])
    assert taken[0] > 10
    assert replay_events(read_journal(str(tmp_path / "journal.sqlite"))).digest() == before.digest()
    after = run_plane(tmp_path, rules, 15, lambda journal: min(snapshots(journal)) > last)
    assert after.next_number == 45
    assert replay_events(read_journal(str(tmp_path / "journal.sqlite"))).digest() == after.digest()


def test_old_events_go_and_their_jobs_are_still_known(tmp_path):
    rules = Retention(every_events=10, every_s=1e6, snapshots=1, keep_days=0.05 / DAY_S)
    state = run_plane(tmp_path, rules, 60, lambda journal: next(iter(journal)).time > 0, more=True)
    journal = opened(tmp_path)
    again = recover(journal)[0]
    journal.close()
    assert again.digest() == state.digest()
    assert sorted(again.job_of) == list(range(state.next_number))


def test_a_reader_finds_snapshots_while_older_ones_are_dropped(tmp_path, monkeypatch):
    journal = opened(tmp_path)
    state = State(cluster("v100:2"))
    for second in range(20):
        journal.append(ev.NodeDrained(float(second), 0, second % 2 == 1))
    journal.snapshot(state)
    ask = DatabaseJournal._ask

    def dropping(self: DatabaseJournal, sql: str, *values: object) -> list[Any]:
        """Between any two queries of the reader, a snapshot is taken and everything before it goes."""
        found = ask(self, sql, *values)
        with monkeypatch.context() as calm:
            calm.setattr(DatabaseJournal, "_ask", ask)
            self.append(ev.NodeDrained(100.0, 0))
            self.snapshot(state)
            self.append(ev.NodeDrained(101.0, 0))
            self.commit()
            self.retain(1, math.inf)
        return found

    monkeypatch.setattr(DatabaseJournal, "_ask", dropping)
    assert next(journal.snapshots())[0] == 20
    assert next(journal.snapshots())[0] == journal.last - 3
    monkeypatch.undo()
    journal.close()


def test_one_is_taken_after_some_time_where_anything_has_happened(tmp_path):
    run_plane(tmp_path, Retention(every_events=10**9, every_s=0.05), 1, lambda journal: bool(snapshots(journal)))


def test_a_snapshot_that_fails_is_told_of_and_the_loop_goes_on(tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.WARNING)

    def full(self, state):
        raise JournalError("journal.sqlite: the disk is full")

    monkeypatch.setattr(DatabaseJournal, "begin_snapshot", full)
    told = lambda journal: "snapshot failed" in caplog.text  # noqa: E731
    state = run_plane(tmp_path, Retention(every_events=5), 10, told)
    assert state.next_number == 10
    assert "the disk is full" in {getattr(record, "why", "").partition(": ")[2] for record in caplog.records}


def test_a_defect_in_one_snapshot_does_not_end_all_later_ones(tmp_path, monkeypatch, caplog):
    begin, calls = DatabaseJournal.begin_snapshot, list[int]()

    def first_fails(self, state):
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a value that cannot be encoded")
        return begin(self, state)

    monkeypatch.setattr(DatabaseJournal, "begin_snapshot", first_fails)
    run_plane(tmp_path, Retention(every_events=10**9, every_s=0.05), 1, lambda journal: bool(snapshots(journal)), more=True)
    assert "a value that cannot be encoded" in caplog.text


@pytest.mark.parametrize("wrong", [{"every_events": 0}, {"snapshots": 0}, {"every_s": 0.0}, {"keep_days": -1.0}])
def test_rules_that_would_forget_everything_are_refused(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Retention(**wrong)
