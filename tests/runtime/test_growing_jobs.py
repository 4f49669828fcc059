"""A real job announces another batch size, and Shockwave plans anew: at once, or where it is lazy with the next window."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
from cluster_at_work import SOURCE, ClusterAtWork

from fairlead.cli.main import app
from fairlead.config.schedulers import compose
from fairlead.core import events as ev
from fairlead.core.job import BATCH_SIZE, Regime
from fairlead.engine.apply import replay_events
from fairlead.journal.recovery import read_journal

pytestmark = pytest.mark.long

SMALL, LARGE, STEPS = 32, 512, 800
SMALL_S, LARGE_S = 0.04, 0.08  # a step: at the large size eight times as much is done in a second, on a busy machine still more

GROWS = f"""
import os, sys, time
import fairlead

class Batches:
    def __init__(self):
        self.batch_size, self.used = {SMALL}, 0

    def __iter__(self):
        while self.used < {SMALL * STEPS}:
            self.used = min(self.used + self.batch_size, {SMALL * STEPS})
            yield self.used

def load(folder):
    batches.used, batches.batch_size = map(int, (folder / "used").read_text().split())
    return True

batches, log = Batches(), open("grows.times", "a")
lease = fairlead.lease(batches, load=load, save=lambda f: (f / "used").write_text(f"{{batches.used}} {{batches.batch_size}}"))
for _ in lease:
    lease.batch_size = batches.batch_size
    time.sleep(0 if os.path.exists("grows.hurry") else {SMALL_S} if batches.batch_size == {SMALL} else {LARGE_S})
    print(batches.batch_size, time.monotonic(), file=log, flush=True)
    if os.path.exists("grows.now"):
        batches.batch_size = {LARGE}
"""


def grows(cluster: ClusterAtWork, **about: Any) -> dict[str, Any]:
    """800 steps of 40 ms at its first batch size; at the large one, 50 of 80 ms."""
    (cluster.root / "grows.py").write_text(GROWS)
    told = {"name": "grows", "run": [sys.executable, "grows.py"], "env": {"PYTHONPATH": SOURCE}, "directory": str(cluster.root)}
    return {**told, "kind": f"grows (batch size {SMALL})", "steps": STEPS, **about}


def play(cluster: ClusterAtWork, seen: str, **about: Any) -> dict[str, dict[str, Any]]:
    """Two jobs; once it is known how fast they are, one of them grows. What is told of the jobs then."""
    cluster.submit(grows(cluster, **about), cluster.job("still", STEPS, kind="still", step_s=0.05))
    cluster.until("both run", lambda jobs: all(job["rate"] > 0 for job in jobs.values()))
    return cluster.until(seen, lambda jobs: len(jobs["grows"].get("regimes", ())) == 2 or grow(cluster))


def grow(cluster: ClusterAtWork) -> bool:
    if len(planned(cluster)) > 1:  # with what was measured
        (cluster.root / "grows.now").touch()
    return False


def planned(cluster: ClusterAtWork) -> list[ev.MemoChanged]:
    return [event for event in read_journal(str(cluster.journal)) if isinstance(event, ev.MemoChanged)]


def around(cluster: ClusterAtWork) -> tuple[ev.MemoChanged, list[ev.MemoChanged]]:
    """The plan that stood when the job announced its size, and those that came then."""
    told = [one for one in read_journal(str(cluster.journal)) if isinstance(one, ev.MetricsReported) and one.name == BATCH_SIZE]
    (at,) = (one.time for one in told if LARGE in one.values.tolist())
    plans = planned(cluster)
    *_, before = (plan for plan in plans if plan.time <= at)
    return before, [plan for plan in plans if plan.time > at]


def rounds(plan: ev.MemoChanged, window: int) -> list[int]:
    """Of each job, from the plan's beginning on."""
    return np.unpackbits(plan.memo["schedule"], axis=1, count=window).sum(axis=1).tolist()


def would_stand(cluster: ClusterAtWork, new: ev.MemoChanged) -> bool:
    """Whether the plan before would have stood at that moment, if nothing had been announced and nothing learned of it."""
    events = list[ev.Event]()
    for event in read_journal(str(cluster.journal)):
        if event.time >= new.time and isinstance(event, (ev.ObservationsRecorded, ev.MemoChanged)):
            break
        if not (isinstance(event, ev.MetricsReported) and event.name == BATCH_SIZE and LARGE in event.values.tolist()):
            events.append(event)
    state, stages = replay_events(events), compose({"preset": "shockwave", "rounds": 0.5})
    view = state.snapshot(new.time, round_s=0.5).with_changes(estimate=stages.estimator.rates)
    return stages.policy.select(view, state.memo)[1] is state.memo


def longest_step_s(cluster: ClusterAtWork) -> float:
    """At the large size, by the job's own clock: where a machine is busy it is longer than it sleeps."""
    told = [line.split() for line in (cluster.root / "grows.times").read_text().splitlines()]
    return float(np.diff([float(second) for size, second in told if int(size) == LARGE]).max())


def end(cluster: ClusterAtWork) -> None:
    for name in ("grows", "still"):
        cluster.hurry(name)
    cluster.until_all_ended()


def test_an_announcement_changes_the_plan_at_the_next_round(tmp_path):
    with ClusterAtWork(tmp_path, "2xv100:2", preset="shockwave", embedded=True) as cluster:
        jobs = play(cluster, "its regimes are seen", mode="gns")
        assert "flags" not in jobs["grows"]
        before = len(planned(cluster))
        cluster.until(
            "there is another plan", lambda jobs: len(planned(cluster)) > before or jobs["grows"]["phase"] != "running"
        )
        state = replay_events(read_journal(str(cluster.journal)))  # before it hurries
        longest_s = longest_step_s(cluster)
        end(cluster)
        old, (new, *_) = around(cluster)
        assert new.memo["number"].tolist() == old.memo["number"].tolist() == [0, 1], "nobody came or went"
        assert old.memo["round_s"] == 0.5
        assert (old.memo["grown"].tolist(), new.memo["grown"].tolist()) == ([0, 0], [LARGE, 0])
        assert new.memo["pace_s"][0] < 0.75 * old.memo["pace_s"][0]
        assert rounds(new, 30)[0] < 0.75 * rounds(old, 30)[0], "it needs fewer rounds than before"
        assert would_stand(cluster, new)
        (first, second) = state.adaptations.regimes[0]
        assert (first, second.batch_size) == (Regime(SMALL, first.from_steps), LARGE)
        learned = state.observations[f"measured 1 × grows (batch size {LARGE}) on v100"]
        assert 0.7 / longest_s < learned < 1.3 / LARGE_S


def test_a_lazy_one_keeps_its_plan_to_the_end_of_the_window_and_what_was_not_declared_is_flagged(tmp_path, monkeypatch, capsys):
    window = 4
    policy = f"shockwave:rounds={window}:reactive=false"
    with ClusterAtWork(tmp_path, "2xv100:2", policy, embedded=True) as cluster:
        jobs = play(cluster, "its regimes are seen", steps=100)
        jobs = cluster.until("it has done more than it said", lambda jobs: len(jobs["grows"].get("flags", ())) == 2)
        assert jobs["grows"]["flags"] == [
            "did more steps than it declared",
            f"declared static, and its batch size became {LARGE}",
        ]
        monkeypatch.setenv("FAIRLEAD_URL", f"http://127.0.0.1:{cluster.http}")
        monkeypatch.setenv("FAIRLEAD_TOKEN", (tmp_path / "plane" / "admin.token").read_text())
        app(["info", "grows"], standalone_mode=False)
        said = " ".join(capsys.readouterr().out.split())
        assert re.search(rf"batch sizes {SMALL} from step \d+, {LARGE} from step \d+", said)
        assert "did more steps than it declared; declared static" in said
        before = len(planned(cluster))
        cluster.until("there is another plan", lambda jobs: len(planned(cluster)) > before)
        end(cluster)
        old, (new, *_) = around(cluster)
        assert new.memo["number"].tolist() == old.memo["number"].tolist() == [0, 1]
        assert new.memo["begun"] >= old.memo["begun"] + window * 0.5 - 1e-6
        assert (old.memo["grown"].tolist(), new.memo["grown"].tolist()) == ([0, 0], [LARGE, 0])
