"""`why --fix`: each change that it finds starts the job when it is applied in a fork that runs, and none of its kind that is
smaller does; by brute force, on random clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from random import Random

import orjson
import pytest

from fairlead.cli.cmd_jobs import _tell_fixes
from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core import events as ev
from fairlead.core.cluster import Node
from fairlead.core.job import TIMED, Job
from fairlead.engine.state import State
from fairlead.experiments.fork import Fork, ForkChanges
from fairlead.experiments.lookahead import StartingPoint, forward_loop
from fairlead.experiments.questions import fix_to_json
from fairlead.experiments.smallest_change import MAX_MORE, MAX_WEIGHT, SmallestChange, smallest_changes
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.testing.builders import cluster
from fairlead.workloads.throughput_tables import ThroughputTable

pytestmark = pytest.mark.long

POLICIES = ("fifo", "las", "srtf", "max-min-fairness", "tiresias", "fifo-priority")


def random_fork(seed: int) -> Fork:
    """A small cluster with a queue, after a few decisions."""
    random = Random(seed)
    nodes = cluster(",".join(random.choice(("v100:2", "v100:4", "p100:4")) for _ in range(random.randint(2, 4))))
    admission = Part("accept-all")
    if random.random() < 0.3:
        admission = Part("user-resource-quota", {"default": random.randint(1, 6)})
    scheduler = SchedulerConfig(
        Part(random.choice(POLICIES)), admission, round_s=300, placement=Part(random.choice(("consolidated", "spread")))
    )
    table = ThroughputTable.timed(nodes.type_names)
    jobs = [
        Job(
            f"job-{place}",
            submitted_s=float(random.randint(0, 3000)),
            steps=float(random.randint(600, 40_000)),
            kind=TIMED,
            workers=random.choice((1, 1, 2, 4, 6)),
            user=random.choice("abc"),
            priority=random.choice((0, 0, 1, 2)),
            allowed_types=random.choice(((), (), ("v100",))),
        )
        for place in range(random.randint(8, 16))
    ]
    start = StartingPoint(State(nodes).snapshot().detached(), scheduler, arrivals=tuple(jobs))
    loop = forward_loop(start, scheduler, table)
    loop.run(until=3599.5)
    if random.random() < 0.3:
        lost = ev.NodeDrained(3599.5, 0, reason="a test")
        loop._record_all([lost])
    view = loop.state.snapshot(3600.0).detached()
    return Fork(StartingPoint(view, scheduler, loop.state.memo), table)


def starts(fork: Fork, number: int, changes: ForkChanges) -> bool:
    """Whether the first decision of a simulation with the changes starts the job."""
    name, plans = fork.start.view.job_of[number].name, []
    try:
        changed = fork.changed(changes)
    except Exception:
        return False
    loop = forward_loop(changed.start, changed.start.scheduler, changed.table, on_decision=plans.append)
    loop.run(stop=lambda state: bool(plans))
    return bool(plans) and name in {loop.state.job_of[n].name for n in plans[0].launches.jobs.tolist()}


def smaller(fork: Fork, number: int, found: SmallestChange) -> Iterator[ForkChanges]:
    """All changes of a kind that are smaller than the one that was found, or all of the kind for size infinity."""
    view, job = fork.start.view, fork.start.view.job_of[number]
    if found.kind == "fewer GPUs":
        for fewer in range(1, int(min(found.size, job.workers))):
            yield ForkChanges(without=(number,), submit=(replace(job, workers=job.workers - fewer),))
    elif found.kind == "more GPUs":
        for more in range(1, int(min(found.size, min(MAX_MORE, max(8, 2 * job.workers)) + 1))):
            for name in job.allowed_types or view.cluster.type_names:
                if name in view.cluster.type_names:
                    yield ForkChanges(add=(Node("other", name, more),))
    elif found.kind == "priority":
        for more in range(1, int(min(found.size, 5))):
            yield ForkChanges(updates={number: {"priority": job.priority + more}})
    elif found.kind == "weight":
        for factor in range(2, int(min(found.size, MAX_WEIGHT + 1))):
            yield ForkChanges(updates={number: {"weight": factor * job.weight}})
    elif found.kind == "quota":
        limit = fork.start.scheduler.admission.parameters.get("default")
        for more in range(1, int(min(found.size, 20))) if limit else ():
            yield ForkChanges(quotas={job.user: limit + more})
    elif found.kind == "jobs that end":
        running = view.jobs.runners.number.tolist()
        for count in range(1, int(min(found.size, 3))):
            for ended in combinations(running, count):
                yield ForkChanges(without=ended)


KINDS = ("fewer GPUs", "more GPUs", "priority", "weight", "quota", "jobs that end")


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_changes_start_the_job_and_are_the_smallest(first: int) -> None:
    tried = 0
    for seed in range(first, first + 10):
        fork = random_fork(seed)
        view = fork.start.view
        pending = sorted({*view.job_of} - {*view.jobs.runners.number.tolist()})
        for number in Random(seed).sample(pending, min(2, len(pending))):
            found = smallest_changes(fork, number, delays=False)
            assert found.starts == starts(fork, number, ForkChanges()), (seed, number)
            if found.starts:
                continue
            tried += 1
            for change in found.changes:
                assert starts(fork, number, change.changes), (seed, number, change)
                assert not [one for one in smaller(fork, number, change) if starts(fork, number, one)], (seed, number, change)
            for kind in {*KINDS} - {change.kind for change in found.changes}:
                all_of_it = SmallestChange(kind, float("inf"), "", ForkChanges())
                missed = [one for one in smaller(fork, number, all_of_it) if starts(fork, number, one)]
                assert not missed, (seed, number, kind, missed)
    assert tried


def test_delays_name_the_jobs_that_pay() -> None:
    nodes = cluster("v100:1")
    table = ThroughputTable.timed(nodes.type_names)
    scheduler = SchedulerConfig(Part("fifo-priority"), round_s=300)
    jobs = (Job("first", 0.0, 3600.0, TIMED, user="a"), Job("second", 1.0, 3600.0, TIMED, user="b"))
    loop = forward_loop(StartingPoint(State(nodes).snapshot().detached(), scheduler, arrivals=jobs), scheduler, table)
    loop.run(until=899.5)
    fork = Fork(StartingPoint(loop.state.snapshot(900.0).detached(), scheduler, loop.state.memo), table)
    found = {one.kind: one for one in smallest_changes(fork, 1).changes}
    assert found["priority"].text == "give it priority 1 instead of 0"
    assert [(late.name, late.user) for late in found["priority"].delays] == [("first", "a")]
    assert found["priority"].delays[0].seconds == pytest.approx(3600.0, abs=310)
    assert found["jobs that end"].text == "end job first (1 GPU)"
    assert found["more GPUs"].delays == ()
    assert smallest_changes(fork, 1, budget_s=-1.0).unsearched


def test_a_delay_beyond_the_simulation_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The steps of the job are not known: once it starts, the jobs behind it do not end."""
    nodes = cluster("v100:1")
    scheduler = SchedulerConfig(Part("fifo-priority"), round_s=300)
    jobs = (Job("first", 0.0, 3600.0, TIMED), Job("second", 1.0, 3600.0, TIMED), Job("endless", 2.0, UNKNOWN_STEPS, TIMED))
    start = StartingPoint(State(nodes).snapshot().detached(), scheduler, arrivals=jobs)
    loop = forward_loop(start, scheduler, ThroughputTable.timed(nodes.type_names))
    loop.run(until=899.5)
    loop.state.scheduler = scheduler.to_data()
    found = smallest_changes(Fork.of(loop.state, {"rates": {}}), 2, budget_s=120.0)
    _tell_fixes({"name": "endless"}, orjson.loads(orjson.dumps(fix_to_json(found))))
    assert "give it priority 1 instead of 0; it delays first beyond the simulation and 1 more" in capsys.readouterr().out
