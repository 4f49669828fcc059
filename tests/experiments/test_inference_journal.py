"""Sessions served as a journal tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, JournalError
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.core.routes import REPORTED, Route, Session
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.serving import read_history
from fairlead.journal.jsonl import JsonlJournal, read_events
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.sessions import SessionTracker
from fairlead.workloads.throughput_tables import ThroughputTable

PHOTOS = {"slo_ms": 100, "rate": 200, "batches": [1, 32], "latency_ms": {"v100": [9, 40]}}
SCHEDULER = SchedulerConfig.from_data({"policy": {"name": "nexus", "sessions": {"photos": PHOTOS}}, "rounds": 10})


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return written(tmp_path / "run.jsonl", Costs(1.0, 1.0))


def written(path: Path, costs: Costs) -> Path:
    """Of a session that takes a second to start, reports five times its rate at second 50, and is cancelled at 90."""
    machine = Cluster.parse("4xv100:4")
    table = ThroughputTable.timed(machine.type_names)
    others = [ev.MetricsReported(50.0, REPORTED, np.array([0]), np.array([1500.0])), ev.JobCancelled(90.0, 0)]
    jobs = [Job("photos", 20.0, steps=1e9, mode="elastic"), Job("training", 25.0, steps=500.0, workers=2)]
    backend = SimulatedBackend(machine, table, jobs, costs=costs, others=others)
    log = JsonlJournal(path, fresh=True)
    loop = Loop(State(machine), backend, SCHEDULER.build(table), log)
    loop.record(ev.JournalOpened(0.0, machine, SCHEDULER.to_data()))
    loop.run()
    log.flush()
    return path


def test_a_session_on_a_node_that_was_added_later_has_the_same_history(journal, tmp_path):
    (opened, *events), before = list(read_events(journal)), read_history(journal)
    added = [ev.NodeAdded(0.0, 0, opened.cluster.nodes[0]), ev.NodeRepaired(0.0, 0)]
    log = JsonlJournal(tmp_path / "added.jsonl", fresh=True)
    for event in (replace(opened, cluster=Cluster(())), *added, *events):
        log.append(event)
    log.flush()
    after = read_history(tmp_path / "added.jsonl")
    assert (after.rates, after.requests()) == (before.rates, before.requests())
    assert (after.plan, after.windows) == (before.plan, before.windows)


def test_a_session_has_in_the_log_what_it_reported_and_what_it_held(journal):
    history = read_history(journal)
    assert [session.name for session in history.sessions] == ["photos"]
    assert history.rates == {"photos": ((20.0, 50.0, 200.0), (50.0, 90.0, 1500.0))}
    assert history.requests() == 200 * 30 + 1500 * 40
    assert history.requests(40.0, 60.0) == 200 * 10 + 1500 * 10
    # A second later each time, as it starts; the first accelerator goes on, with another batch.
    assert history.windows == ((21.0, 50.0), (50.0, 90.0), (51.0, 90.0), (51.0, 90.0))


def test_while_a_session_starts_only_replicas_that_stay_answer(journal):
    (photos,) = read_history(journal).served(how="uniform").sessions
    assert photos.requests == pytest.approx(66_000, abs=2)
    # A second less the SLO, at both starts; at the second one accelerator goes on, which does 800 requests.
    assert photos.dropped == pytest.approx(200 * 0.9 + (1500 - 800) * 0.9, rel=0.05)
    assert photos.late == 0


def test_while_a_session_that_saves_first_starts_nobody_answers(tmp_path):
    history = read_history(written(tmp_path / "run.jsonl", Costs(1.0, 1.0, checkpoint_s=1e-3)))
    assert history.windows == ((21.0, 50.0), *[(51.0, 90.0)] * 3)
    (photos,) = history.served(how="uniform").sessions
    assert photos.dropped == pytest.approx(200 * 0.9 + 1500 * 0.9, rel=0.05)


def test_a_run_can_be_asked_on_the_command_line(journal):
    done = CliRunner().invoke(app, ["inference", "replay", str(journal), "--from", "30", "--until", "45", "--json"])
    told = json.loads(done.stdout)
    assert told["attainment"] == 1.0
    assert told["results"][0]["requests"] == pytest.approx(3000, rel=0.1)
    assert "within their SLO" in CliRunner().invoke(app, ["inference", "replay", str(journal)]).stdout


def test_a_sample_of_requests_tells_what_all_of_them_do(journal):
    history = read_history(journal)
    (whole,), (part,) = history.served().sessions, history.sampled(20_000).sessions
    assert 10_000 < part.requests < 20_000
    assert part.attainment == pytest.approx(whole.attainment, abs=0.03)
    assert history.sampled(100_000).sessions == history.served().sessions


def test_batches_and_company_are_those_that_were_planned_at_the_time():
    machine = Cluster.parse("2xv100:2")
    sessions = {name: Session(name, 10.0, 0.1, {"v100": np.full(32, 0.01)}) for name in "ab"}
    requests = SessionTracker(machine, sessions)
    one, both = np.array([0]), np.array([0, 1])
    launch = Launches(one, one * 0, np.array([0, 2]), np.array([0, 1]))
    beside = Launches(one + 1, one * 0, np.array([0, 1]), np.array([1]))
    for event in (
        ev.JobSubmitted(0.0, 0, Job("a")),
        ev.JobSubmitted(0.0, 1, Job("b")),
        ev.RoundPlanned(RoundPlan(0.0, launches=launch, routes={0: Route((0, 1), (0.5, 0.5), 8, 10.0)})),
        ev.ProgressReported(0.0, one, np.zeros(1), np.ones(1), np.zeros(1)),
        ev.RoundPlanned(RoundPlan(5.0, launches=beside, routes={1: Route((1,), (1.0,), 4, 10.0)})),
        ev.ProgressReported(5.0, one + 1, np.zeros(1), np.ones(1), np.array([5.0])),
        ev.RoundPlanned(RoundPlan(7.0, routes={0: Route((0, 1), (0.5, 0.5), 16, 20.0)})),
        ev.JobsFinished(9.0, both, np.array([8.0, 9.0])),
    ):
        requests.observe(event)
    history = requests.history()
    told = [
        (window, {r.session: r.batch for r in server.residents})
        for window, server in zip(history.windows, history.plan.servers)
    ]
    first = [((0.0, 7.0), {"a": 8}), ((7.0, 8.0), {"a": 16})]
    second = [((0.0, 5.0), {"a": 8}), ((5.0, 7.0), {"a": 8, "b": 4}), ((7.0, 8.0), {"a": 16, "b": 4}), ((8.0, 9.0), {"b": 4})]
    assert told == first + second


def changed(journal: Path, part: str, change: Callable[[dict[str, Any]], None]) -> int:
    """The first line with such a part, changed; returns its number."""
    lines = journal.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if part in line)
    record = json.loads(lines[at])
    change(record)
    journal.write_text("\n".join([*lines[:at], json.dumps(record), *lines[at + 1 :]]) + "\n")
    return at + 1


def test_a_route_to_an_accelerator_that_is_not_there_is_refused_with_its_line(journal):
    line = changed(journal, '"routes"', lambda record: record["routes"][0].__setitem__(1, [99]))
    with pytest.raises(JournalError, match=rf"run.jsonl:{line}: .*routed to GPUs \[99\]"):
        read_history(journal)


def test_a_route_with_a_batch_that_cannot_be_is_refused_with_its_line(journal):
    line = changed(journal, '"routes"', lambda record: record["routes"][0].__setitem__(3, 0))
    with pytest.raises(JournalError, match=f"run.jsonl:{line}: .*routes: batch is 0"):
        read_history(journal)


def test_a_journal_from_before_plans_had_routes_is_refused(journal):
    memo = {"routing": {"photos": {"type": "v100", "replicas": 1, "needed": 1, "batch": 32, "rate": 200.0}}}
    lines = journal.read_text().splitlines()
    at = next(at for at, line in enumerate(lines) if '"routes"' in line)
    plan = {name: part for name, part in json.loads(lines[at]).items() if name != "routes"}
    remembered = {"event": "memo_changed", "time": plan["time"], "memo": memo}
    journal.write_text("\n".join([*lines[:at], json.dumps(remembered), json.dumps(plan), *lines[at + 1 :]]) + "\n")
    with pytest.raises(InputError, match=f"run.jsonl:{at + 1}: field 'memo.routing': expected plans with routes"):
        read_history(journal)


def test_a_journal_without_sessions_says_so(tmp_path):
    path = tmp_path / "run.jsonl"
    log = JsonlJournal(path, fresh=True)
    log.append(ev.JournalOpened(0.0, Cluster.parse("4xv100:4"), SchedulerConfig().to_data()))
    log.flush()
    with pytest.raises(InputError, match="a journal of policy 'nexus' with jobs that are sessions"):
        read_history(path)
