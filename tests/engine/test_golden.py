"""Event logs that are written down, byte for byte. A change of these files is a change of what the engine does or of how it
writes it; the latter also wants a new version of the format. To write them anew on purpose:

    FAIRLEAD_WRITE_GOLDEN=1 pytest tests/engine/test_golden.py
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.schedulers import SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.job import Job
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.journal.jsonl import JsonlJournal, read_events
from fairlead.simulator.backend import SimulatedBackend
from fairlead.simulator.costs import Costs
from fairlead.simulator.faults import Outage, outage_events
from fairlead.testing import check_events
from fairlead.testing.invariants import check_state
from scenes import table_of

GOLDEN = Path(__file__).parent / "golden"

TYPES = (AcceleratorType("v100", 16.0, 2.5), AcceleratorType("k80", 12.0, 0.5))
NODES = (Node("a", "v100", 2, cpus=8.0), Node("b", "v100", 2), Node("c", "k80", 2, links=((0.0, 10.0), (10.0, 0.0))))
CLUSTER = Cluster(NODES, TYPES)
TABLE = table_of(("v100", "k80"), {("LM", 1): (2.0, 0.5), ("LM", 2): (3.5, 0.875), ("ResNet-18", 1): (4.0, 0.25)})
JOBS = [
    Job("first", 0.0, 4000.0, "LM", 2, user="ann", account="lab", allowed_types=("v100",)),
    Job("second", 10.0, 6000.0, "LM", 1, weight=2.0, user="bob"),
    Job("too-wide", 20.0, 100.0, workers=5),
    Job("fussy", 30.0, 50.0, allowed_types=("h200",)),
    Job("naïve ☂", 40.0, 8000.0, "ResNet-18", deadline_s=3600.0),
    Job("limited", 350.0, 9000.0, time_limit_s=500.0, memory_gb=14.0),
    Job("gang", 400.0, 1500.0, "LM", 2, priority=2, min_run_s=400.0, memory_gb=13.0),
    Job("withdrawn", 450.0, 1e6, workers=4),
    Job("late", 2000.0, 64.0, "ResNet-18"),
]
OTHERS = [
    ev.JobCancelled(900.0, 7),
    ev.MetricsReported(1000.0, "loss", np.array([1]), np.array([0.125])),
    ev.SchedulerSwitched(1300.0, {"policy": "srtf", "rounds": 300.0}, "a person wanted it"),
]
FOLLOWERS = [Job("next", 50.0, 100.0, after=(0, 1)), Job("never", 460.0, 100.0, after=(6,)), Job("nor", 470.0, after=(9,))]
DRAINS = [ev.NodeDrained(500.0, 0), ev.NodeDrained(2500.0, 0, undo=True)]
SCENARIOS = {
    "rounds": {"policy": {"name": "tiresias", "thresholds": [500.0, 2000.0], "promote_after": 0.5}, "rounds": 300.0},
    "event-driven": {"policy": "srtf", "rounds": "event-driven"},
    "drained": {"policy": "las", "rounds": 300.0},
    "learning": {"policy": "srtf", "estimator": {"name": "online", "noise": 0.125, "measurements": 2}, "rounds": 300.0},
}


def play(name: str, path: Path) -> State:
    scheduler = SCENARIOS[name]
    backend = SimulatedBackend(
        CLUSTER,
        TABLE,
        JOBS if name != "drained" else [*JOBS, *FOLLOWERS],
        costs=Costs(16.0, 32.0, 8.0, 120.0),
        faults=outage_events([Outage(1, 700.0, 1100.0)]),
        others={"rounds": OTHERS, "drained": [*DRAINS, *OTHERS[:1]]}.get(name, OTHERS[:2]),
    )

    def compose(data):
        return SchedulerConfig.from_data(data).build(TABLE)

    loop = Loop(State(CLUSTER), backend, compose(scheduler), journal=JsonlJournal(path, fresh=True), compose=compose)
    loop.record(ev.JournalOpened(0.0, CLUSTER, scheduler, "golden", {"LM|1": (2.0, 0.5)}))
    loop.run()
    loop.journal.close()
    return loop.state


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_log_is_the_one_that_was_written_down(name, tmp_path):
    golden = GOLDEN / f"{name}.jsonl"
    if os.environ.get("FAIRLEAD_WRITE_GOLDEN"):
        play(name, golden)
    play(name, tmp_path / "now.jsonl")
    ours, theirs = (tmp_path / "now.jsonl").read_bytes().splitlines(), golden.read_bytes().splitlines()
    for line, (now, before) in enumerate(zip(ours, theirs), 1):
        assert now == before, f"line {line} of {golden.name} was another one"
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_log_of_the_past_can_be_read_and_gives_the_same_state(name, tmp_path):
    live = play(name, tmp_path / "now.jsonl")
    replayed = check_events(read_events(GOLDEN / f"{name}.jsonl"))
    check_state(replayed)
    assert replayed.digest() == live.digest()


def test_the_logs_have_something_of_everything():
    seen = {type(event) for name in SCENARIOS for event in read_events(GOLDEN / f"{name}.jsonl")}
    newer = {ev.NodeBackedOff, ev.NodeAdded, ev.NodeRemoved, ev.JobHeld, ev.JobReleased, ev.JobRequeued, ev.JobUpdated}
    newer |= {ev.ControlPlaneRestarted, ev.ForecastsRecorded, ev.SlowdownExceeded}
    assert seen == {*ev.EXOGENOUS, *ev.Derived.__args__} - newer
