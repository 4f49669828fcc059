"""GPU time within a window, from the journal's events, against a sum over all events, one after the other."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import served

from fairlead.cli.cmd_accounting import balance_words, usage_rows
from fairlead.config.registry import Registry
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.errors import JournalError
from fairlead.core.job import Job, Phase
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event, replay_events
from fairlead.engine.codec import decode
from fairlead.engine.fairness_ledger import nanoseconds
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.engine.state_codec import load, save
from fairlead.journal.control_files import FolderFiles
from fairlead.journal.sqlite import SqliteJournal
from fairlead.runtime.control.accounting import GpuRun, GpuRunRecorder, cut, journal_lines, numbered_events
from fairlead.runtime.control.wall_clock import origin_of
from fairlead.runtime.http_client import ControlPlaneClient
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable


def eventful(seed: int) -> list[ev.Event]:
    """A simulation with gangs, preemptions, a lost node, a hold, a requeue and a cancellation."""
    draw, machines = random.Random(seed), cluster("v100:4,v100:4,k80:2")
    table, journal = ThroughputTable.timed(machines.type_names), MemoryJournal()
    jobs = [Job(f"j{n}", draw.uniform(0, 900), draw.uniform(50, 900), workers=draw.choice([1, 1, 2, 4])) for n in range(30)]
    others = (ev.JobHeld(400.0, 3, "ann"), ev.JobReleased(900.0, 3), ev.JobRequeued(500.0, 1), ev.JobCancelled(600.0, 2))
    faults = outage_events([Outage(0, 300.0, 500.0)])
    backend = SimulatedBackend(machines, table, sorted(jobs, key=lambda job: job.submitted_s), others=others, faults=faults)
    stages = SchedulerConfig.from_data({"policy": "las", "rounds": 60.0}).build(table, Registry.installed())
    loop = Loop(State(machines), backend, stages, journal=journal)
    loop.record(ev.JournalOpened(0.0, machines, {"policy": "las", "rounds": 60.0}))
    loop.run()
    return journal.events


def gpu_runs(events: list[ev.Event], state: State, now: float) -> tuple[float, list[GpuRun]]:
    recorder = GpuRunRecorder(state)
    for number, event in enumerate(events, 1):
        recorder.observe_all([(number, event)])
    return recorder.runs(now)


def brute_force(events: list[ev.Event], since_s: float, until_s: float) -> dict[int, float]:
    """GPU seconds by job: between two events every job holds what it holds; an end that is reported late is taken back."""
    state, spent, before = replay_events(events[:1]), dict[int, float](), 0.0

    def add(number: int, gpus: int, start_s: float, end_s: float, sign: float = 1.0) -> None:
        spent[number] = spent.get(number, 0.0) + sign * gpus * max(0.0, min(end_s, until_s) - max(start_s, since_s))

    for event in events[1:]:
        for number in state.running.tolist():
            add(number, int(state.columns["held"][number]), before, event.time)
        if isinstance(event, (ev.JobsFinished, ev.JobsFailed)):
            for number, at in zip(event.jobs.tolist(), event.at.tolist()):
                add(number, int(state.columns["held"][number]), at, event.time, -1.0)
        apply_event(state, event)
        before = event.time
    return {number: seconds for number, seconds in spent.items() if abs(seconds) > 1e-9}


@pytest.mark.parametrize("seed", range(3))
def test_gpu_time_in_a_window_is_the_sum_over_all_events_cut_at_its_edges(seed: int) -> None:
    events = eventful(seed)
    state = replay_events(events)
    known_s, runs = gpu_runs(events, state, state.time)
    assert known_s == 0.0
    for since_s, until_s in ((0.0, 1e9), (310.0, 640.0), (0.0, 123.4), (1000.0, 1001.0)):
        found: dict[int, float] = {}
        for run in runs:
            if (part := cut(run, since_s, until_s)) is not None:
                found[part.number] = found.get(part.number, 0.0) + part.gpus * (part.end_s - part.start_s)
        assert found == pytest.approx(brute_force(events, since_s, until_s))
    total = {
        number: sum(run.gpus * (run.end_s - run.start_s) for run in runs if run.number == number) for number in state.job_of
    }
    assert [total[number] for number in sorted(total)] == pytest.approx(state.all_jobs().accelerator_s.tolist())


@pytest.mark.parametrize("seed", range(3))
def test_each_run_has_its_nodes_and_how_it_ended(seed: int) -> None:
    events = eventful(seed)
    state = replay_events(events)
    runs = gpu_runs(events, state, state.time)[1]
    assert {"finished", "preempted"} <= {run.outcome for run in runs}
    for number in state.job_of:
        mine = [run for run in runs if run.number == number]
        phase = Phase(int(state.columns["phase"][number])).name.lower()
        assert not mine or mine[-1].outcome in (phase, "requeued", "preempted", "interrupted")
        for one, after in pairwise(mine):
            assert (one.outcome == "moved") <= (after.start_s == one.end_s)
        capacity = [sum(state.cluster.nodes[node].accelerators for node in run.nodes) for run in mine]
        assert all(run.gpus <= room for run, room in zip(mine, capacity))


def test_a_journal_that_has_dropped_its_beginning_tells_the_time_from_its_first_event_on() -> None:
    events = eventful(0)
    half = len(events) // 2
    state = replay_events(events)
    known_s, runs = gpu_runs(events[half:], state, state.time)
    assert known_s == events[half].time
    whole = gpu_runs(events, state, state.time)[1]
    begun_later = [run for run in whole if run.start_s > known_s]
    assert [run for run in runs if run.start_s > known_s] == begun_later


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_began_before_the_first_event_that_is_left_count_from_there_on(seed: int) -> None:
    events = eventful(seed)
    state = replay_events(events)
    whole = gpu_runs(events, state, state.time)[1]
    for first in range(0, len(events), 7):
        known_s, runs = gpu_runs(events[first:], state, state.time)
        in_doubt = {event.number for event in events[first:] if isinstance(event, (ev.JobCancelled, ev.JobRequeued))}
        expected, found = (
            sorted(
                (part.number, part.gpus, part.start_s, part.end_s)
                for run in some
                if (part := cut(run, known_s, 1e9)) is not None and part.number not in in_doubt
            )
            for some in (whole, runs)
        )
        assert found == expected


def test_usage_is_split_where_days_begin_in_local_time() -> None:
    noon = datetime(2026, 11, 1, 12).timestamp()
    run = {"number": 1, "name": "a", "user": "ann", "account": "", "job_type": "", "gpu_type": "v100", "gpus": 2}
    rows = usage_rows([{**run, "start": noon, "end": noon + 24 * 3600}], ["user", "day"])
    assert rows == [
        {"user": "ann", "day": "2026-11-01", "jobs": 1, "gpu_hours": 24.0},
        {"user": "ann", "day": "2026-11-02", "jobs": 1, "gpu_hours": 24.0},
    ]
    (week,) = usage_rows([{**run, "start": noon + 86400, "end": noon + 2 * 86400}], ["week"])
    assert (week["week"], week["gpu_hours"]) == ("2026-11-02", 48.0)
    months = usage_rows([{**run, "start": noon - 86400, "end": noon}], ["month", "gpu-type"])
    assert [row["month"] for row in months] == ["2026-10", "2026-11"]


def test_users_see_their_own_history_and_runs() -> None:
    machines = cluster("v100:1")
    state = State(machines)
    apply_event(state, ev.JournalOpened(0.0, machines, {"policy": "las", "estimator": "measured", "rounds": 0.2}, journal="x"))
    apply_event(state, ev.JobSubmitted(1.0, 0, Job("mine", 1.0, user="ann", command='{"run": ["true"]}')))
    apply_event(state, ev.JobSubmitted(1.0, 1, Job("other", 1.0, user="bob", command='{"run": ["true"]}')))
    apply_event(state, ev.JobCancelled(3.0, 0))
    apply_event(state, ev.JobCancelled(4.0, 1))
    with served("v100:1", state) as control:
        mine = ControlPlaneClient(control.url, control.user).history()
        every = ControlPlaneClient(control.url, control.token).history()
        assert ControlPlaneClient(control.url, control.user).runs()["runs"] == []
        assert control.plane.loop.state.origin == control.plane.origin  # of a journal that began without it
    assert [(job["name"], job["state"], job["waited_s"], job["gpu_hours"]) for job in mine] == [("mine", "cancelled", 2.0, 0.0)]
    assert [job["name"] for job in every] == ["mine", "other"]


def test_a_journal_alone_gives_the_clock_times_of_its_cluster(tmp_path: Path) -> None:
    with served("v100:1") as control:
        ControlPlaneClient(control.url, control.token).nodes()  # the journal has been opened
    state = replay_events(control.journal)
    assert origin_of(FolderFiles(tmp_path), load(save(state)).origin) == pytest.approx(control.plane.origin, abs=1.0)


def test_history_has_each_run_of_a_requeued_job_and_usage_counts_the_jobs_that_ran() -> None:
    machines, one = cluster("v100:1"), np.array([0])
    state = State(machines)
    apply_event(state, ev.JournalOpened(0.0, machines, {"policy": "las", "estimator": "measured", "rounds": 0.2}, journal="x"))
    for number in range(2):
        apply_event(state, ev.JobSubmitted(1.0, number, Job(f"j{number}", 1.0, user="ann", command='{"run": ["true"]}')))
    for second in (10.0, 110.0):
        launches = Launches(one, one * 0, np.array([0, 1]), one)
        apply_event(state, ev.RoundPlanned(RoundPlan(second, admitted=one, launches=launches)))
        apply_event(state, ev.JobsFailed(second + 36.0, one, np.array([second + 36.0]), "status 3", 3))
        apply_event(state, ev.JobRequeued(100.0 if second < 100 else 200.0, 0))
    apply_event(state, ev.JobCancelled(201.0, 0))
    apply_event(state, ev.JobCancelled(202.0, 1))
    state = load(save(state))
    with served("v100:1", state) as control:
        client = ControlPlaneClient(control.url, control.user)
        *runs, _ = client.history()
        usage = client.usage()
    zero = control.plane.origin
    assert [(run["state"], run["exit_code"], round(run["ended_at"] - zero, 3)) for run in runs] == [
        ("failed", 3, 46.0),
        ("failed", 3, 146.0),
        ("cancelled", None, 201.0),
    ]
    assert [(run["waited_s"], run["ran_s"], run["gpu_hours"]) for run in runs] == [(9, 36, 0.01), (10, 36, 0.01), (1, 0, 0)]
    assert [row["jobs"] for row in usage] == [1], "the other job has not run"


@pytest.mark.parametrize("seed", range(3))
def test_the_ledger_has_the_gpu_time_of_the_journals_runs_exactly(seed: int) -> None:
    opened, *later = eventful(seed)
    assert isinstance(opened, ev.JournalOpened)
    events = [replace(opened, journal="x"), *later]
    state = replay_events(events)
    _, runs = gpu_runs(events, state, state.time)
    assert state.ledger is not None
    rows = state.ledger.up_to(state, state.time).rows.values()
    assert sum(row.received for row in rows) == sum(
        run.gpus * (nanoseconds(run.end_s) - nanoseconds(run.start_s)) for run in runs
    )


def two_users(machines: Any) -> State:
    """ann has both GPUs for 90 s, and bob, of an account with twice the weight, waits."""
    state, zero = State(machines), np.array([0])
    scheduler = {"policy": "las", "estimator": "measured", "rounds": 0.2, "ledger": {"accounts": {"lab": 2.0}}}
    apply_event(state, ev.JournalOpened(0.0, machines, scheduler, journal="x"))
    for number, (user, account) in enumerate((("ann", ""), ("bob", "lab"))):
        job = Job(f"j{number}", 0.0, user=user, account=account, workers=2, command='{"run": ["true"]}')
        apply_event(state, ev.JobSubmitted(0.0, number, job))
    launches = Launches(zero, zero, np.array([0, 2]), np.array([0, 1]))
    apply_event(state, ev.RoundPlanned(RoundPlan(0.0, admitted=np.array([0, 1]), launches=launches)))
    apply_event(state, ev.JobsFailed(90.0, zero, np.array([90.0]), "status 3", 3))
    apply_event(state, ev.JobCancelled(90.0, 1))
    return state


def test_the_ledger_has_ones_own_rows_and_the_totals_and_all_rows_for_an_admin() -> None:
    with served("v100:2", load(save(two_users(cluster("v100:2"))))) as control:
        mine, all_ = (ControlPlaneClient(control.url, token).ledger() for token in (control.user, control.token))
        command = [sys.executable, "-m", "fairlead.cli.main", "usage", "--ledger"]
        known = {**os.environ, "FAIRLEAD_URL": control.url, "FAIRLEAD_TOKEN": control.token, "COLUMNS": "120"}
        shown, plain, both = (
            subprocess.run([*command, *more], env=known, capture_output=True, text=True, timeout=120, check=False)
            for more in ([], ["--json"], ["--by", "user"])
        )
        metrics = httpx.get(f"{control.url}/metrics", headers={"Authorization": f"Bearer {control.token}"}).text
    second = 10**9
    assert [(row["user"], row["account"]) for row in all_["users"]] == [("ann", ""), ("bob", "lab")]
    assert [(row["received_ns"], row["deserved_ns"]) for row in all_["users"]] == [
        (180 * second, 60 * second),
        (0, 120 * second),
    ]
    assert [row["account"] for row in all_["accounts"]] == ["", "lab"]
    (own,) = mine["users"]
    assert (own["user"], own["received_ns"], own["deserved_ns"]) == ("ann", 180 * second, 60 * second)
    assert "accounts" not in mine
    assert [mine["total"][name] for name in ("received_ns", "deserved_ns", "physical_ns")] == 3 * [180 * second]
    owed, ahead = all_["users"][1]["balance_gpu_hours"], all_["users"][0]["balance_gpu_hours"]
    assert owed == pytest.approx(-ahead)
    assert owed == pytest.approx(120 / 3600, rel=1e-3)
    for line in (
        'fairlead_account_received_gpu_seconds_total{account="lab"} 0.0',
        'fairlead_account_deserved_gpu_seconds_total{account="lab"} 120.0',
        'fairlead_account_received_share{account=""} 1.0',
        'fairlead_account_deserved_share{account="lab"} 0.66',
    ):
        assert line in metrics
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["ann", "3.0", "min", "1.0", "min", "100", "%", "33", "%", "ahead", "by", "2.0", "min"] in lines
    assert ["bob", "lab", "0", "s", "2.0", "min", "0", "%", "67", "%", "owed", "2.0", "min"] in lines
    assert ["all", "users", "3.0", "min", "3.0", "min", "100", "%", "100", "%"] in lines
    assert [row["received_ns"] for row in json.loads(plain.stdout)["users"]] == [180 * second, 0]
    assert both.returncode == 2
    assert "no --since, --until or --by" in both.stderr
    assert balance_words(owed) == "owed 2.0 min"
    assert balance_words(ahead) == "ahead by 2.0 min"


@pytest.mark.parametrize("journal", ["sqlite", "memory"])
def test_runs_are_recorded_as_events_come_and_each_event_is_observed_once(journal: str, tmp_path: Path) -> None:
    events = eventful(1)
    state, half = replay_events(events), len(events) // 2
    kept: Any = SqliteJournal(tmp_path / "j.sqlite") if journal == "sqlite" else MemoryJournal()
    recorder, seen = GpuRunRecorder(state), 0
    for part in (events[:half], events[half:], []):
        for event in part:
            kept.append(event)
        unseen = list(numbered_events(kept, recorder.seen))
        assert [number for number, _ in unseen] == list(range(seen + 1, seen + len(part) + 1))
        recorder.observe_all(unseen)
        recorder.runs(state.time)  # leaves no trace
        seen += len(part)
    assert recorder.runs(state.time) == gpu_runs(events, state, state.time)
    kept.close()


def test_a_recorder_whose_next_events_were_dropped_says_so_and_another_begins_with_those_that_are_left(tmp_path: Path) -> None:
    events = eventful(2)
    state, journal = replay_events(events), SqliteJournal(tmp_path / "j.sqlite")
    recorder = GpuRunRecorder(state)
    journal.append(events[0])
    recorder.observe_all(numbered_events(journal, recorder.seen))
    for event in events[1:-1]:
        journal.append(event)
    journal.snapshot(replay_events(events[:-1]))
    journal.retain(1, math.inf)
    journal.append(events[-1])
    with pytest.raises(JournalError, match="event 2 is missing"):
        list(numbered_events(journal, recorder.seen))
    assert [number for number, _ in numbered_events(journal)] == [len(events)]
    last = len(events)
    with pytest.raises(JournalError, match=f"events up to {last - 1} were removed, .*; the first event left is {last}: pass "):
        journal_lines(journal, 0, 10)
    assert decode(journal_lines(journal, last - 1, 10)).time == events[-1].time
    journal.close()
