"""Elastic jobs in real processes: they grow where there is room and shrink where somebody comes, and do every step once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cluster_at_work import SOURCE, ClusterAtWork

from fairlead.core import events as ev
from fairlead.core.observations import observation_name
from fairlead.journal.recovery import read_journal

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "jobs" / "elastic.py"

STRETCHES = """
import json, os, sys, time
import fairlead

log, steps = open(sys.argv[1] + ".log", "a"), int(sys.argv[2])
about = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "FAIRLEAD_GENERATION")}
for step in fairlead.lease(range(steps), save=lambda folder: None):
    print(json.dumps({"step": step, **about}), file=log, flush=True)
    time.sleep(0 if os.path.exists(sys.argv[1] + ".hurry") else 0.2 / about["WORLD_SIZE"])
"""


def elastic(cluster: ClusterAtWork, name: str, steps: int, **about: Any) -> dict[str, Any]:
    (cluster.root / "stretches.py").write_text(STRETCHES)
    run = [sys.executable, "stretches.py", name, str(steps)]
    told = {"name": name, "run": run, "steps": steps, "env": {"PYTHONPATH": SOURCE}, "directory": str(cluster.root)}
    return {**told, "mode": "elastic", **about}


def launches(cluster: ClusterAtWork, number: int) -> list[int]:
    """The workers of each of a job's starts."""
    sizes = list[int]()
    for event in read_journal(str(cluster.journal)):
        if isinstance(event, ev.RoundPlanned):
            starts = event.plan.launches
            sizes += [int(workers) for job, workers in zip(starts.jobs.tolist(), starts.workers.tolist()) if job == number]
    return sizes


def holds(jobs: dict[str, dict[str, Any]], name: str, workers: int) -> bool:
    return len(jobs[name]["accelerators"]) == workers


def check_steps(log: Path, steps: int) -> None:
    """Every step was done by all workers of one launch, once each, and launches went on where the one before had stopped."""
    by_launch: dict[int, dict[int, list[int]]] = {}
    sizes: dict[int, int] = {}
    for one in map(json.loads, log.read_text().splitlines()):
        by_launch.setdefault(one["FAIRLEAD_GENERATION"], {}).setdefault(one["RANK"], []).append(one["step"])
        sizes[one["FAIRLEAD_GENERATION"]] = one["WORLD_SIZE"]
    at = 0
    for launch, ranks in sorted(by_launch.items()):
        assert set(ranks) == set(range(sizes[launch]))
        assert all(mine == list(range(at, at + len(ranks[0]))) for mine in ranks.values()), (launch, ranks)
        at += len(ranks[0])
    assert at == steps


def test_an_elastic_job_grows_and_shrinks_and_a_rigid_one_does_not(tmp_path):
    """One alone takes all; a gang of two that comes leaves it one; when that has gone it has all again."""
    steps = 3000
    with ClusterAtWork(tmp_path, "3xv100:3", "optimus", embedded=True) as cluster:
        cluster.submit(elastic(cluster, "stretches", steps, workers=2))
        cluster.until("it has all accelerators", lambda jobs: holds(jobs, "stretches", 3) and jobs["stretches"]["rate"] > 0)
        cluster.submit(cluster.job("rigid", steps=500, workers=2))
        jobs = cluster.until("it makes room", lambda jobs: holds(jobs, "rigid", 2) and jobs["rigid"]["rate"] > 0)
        assert holds(jobs, "stretches", 1)
        cluster.hurry("rigid")
        cluster.until("it has all again", lambda jobs: holds(jobs, "stretches", 3) and jobs["stretches"]["rate"] > 0)
        cluster.hurry("stretches")
        cluster.until_all_ended()
        sizes = launches(cluster, 0)
        assert sizes[0] == 1, "nobody knows how fast it is, so it begins with one"
        assert (sizes[-1], max(sizes)) == (3, 3)
        assert set(launches(cluster, 1)) == {2}
        check_steps(tmp_path / "stretches.log", steps)


def test_pollux_learns_from_what_a_job_tells_and_every_sample_counts_once(tmp_path):
    samples = 64_000  # half a minute of one worker: time to learn, and to grow
    with ClusterAtWork(tmp_path, "2xv100:2", "pollux:restart_s=0", embedded=True) as cluster:
        log = tmp_path / "line.log"
        run = [sys.executable, str(EXAMPLE), "--samples", str(samples), "--sample-s", "0.0004", "--log", str(log)]
        told = {"name": "line", "run": run, "env": {"PYTHONPATH": SOURCE}, "directory": str(tmp_path), "mode": "elastic"}
        cluster.submit(told)
        cluster.until_all_ended()
        assert max(launches(cluster, 0)) == 2
        done = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
        spans = sorted({row[:2] for row in done})
        assert [sample for first, last in spans for sample in range(first, last)] == list(range(samples))
        assert len(done) == sum(world for _, _, rank, world, _ in done if rank == 0)
        lessons = [event.values for event in read_journal(str(cluster.journal)) if isinstance(event, ev.ObservationsRecorded)]
        seen = [facts[observation_name("steps", 0)]["seen"] for facts in lessons if observation_name("steps", 0) in facts][-1]
        assert {int(one[1]) for one in seen} == {1, 2}
