"""Horus in small random worlds, round after round, against rules that are checked the slow way: nobody is where it may not be,
and nobody waits who could be somewhere."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from test_horus import of

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.job import Job
from fairlead.policies.colocation.horus import Horus, clustered, weighted_turns
from fairlead.testing import Harness
from fairlead.workloads.throughput_tables import MeasuredTraining, ThroughputTable, colocation_table

KINDS = ("a", "b", "c", "d")
HALF = 1e-6
ROUNDS = 12


class World:
    """What one seed makes: a cluster of one type, what kinds take and do to each other in truth and as predicted, jobs."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self.busy = {kind: float(draw.uniform(2, 100)) for kind in KINDS}
        self.memory = {kind: float(draw.uniform(1, 14)) for kind in KINDS}
        self.truth = {(one, two): float(draw.choice([1.0, draw.uniform(1, 3)])) for one in KINDS for two in KINDS}
        nodes = [Node(f"n{i}", "gpu", int(draw.integers(1, 5)), cpus=self._cpus(draw)) for i in range(draw.integers(1, 4))]
        self.cluster = Cluster(tuple(nodes), (AcceleratorType("gpu", float(draw.choice([16.0, math.inf]))),))
        self.parameters = {
            "queues": int(draw.integers(1, 6)),
            "beta": int(draw.integers(1, 20)),
            "match": bool(draw.integers(2)),
            "critical": bool(draw.integers(2)),
            "max_memory": float(draw.choice([1.0, 0.8])),
            "max_utilization": float(draw.choice([math.inf, 120.0])),
            "slo": float(draw.choice([math.inf, 1.3])),
            "unpack": float(draw.choice([math.inf, 1.2])),
            "local_from": int(draw.choice([2, 8])),
            "starving_s": 1e9,
        }
        unknown = set(draw.choice(KINDS, size=draw.integers(0, 2), replace=False).tolist())
        self.uses = {kind: (self.busy[kind], self.memory[kind]) for kind in KINDS if kind not in unknown}
        self.jobs = [self._job(draw, number) for number in range(draw.integers(1, 25))]

    @staticmethod
    def _cpus(draw: np.random.Generator) -> float:
        return float(draw.choice([math.inf, draw.integers(1, 9)]))

    @staticmethod
    def _job(draw: np.random.Generator, number: int) -> Job:
        return of(
            str(draw.choice(KINDS)),
            f"j{number}",
            int(draw.choice([1, 1, 1, 2, 4])),
            float(draw.uniform(60, 2000)),
            at=float(draw.choice([0.0, draw.uniform(0, 600)])),
            max_slowdown=float(draw.choice([math.inf, math.inf, 1.0, 1.1, 2.0])),
            memory_gb=float(draw.choice([0.0, 0.0, 7.0])),
            cpus=float(draw.choice([0.0, 1.0, 2.5])),
            min_run_s=float(draw.choice([0.0, 0.0, 300.0])),
        )

    def table(self) -> ThroughputTable:
        rows = [MeasuredTraining(kind, 1.0, self.busy[kind], self.memory[kind]) for kind in KINDS]
        return colocation_table("gpu", rows, lambda one, two: self.truth[one, two], (1, 2, 4))

    def harness(self, jobs: list[Job]) -> Harness:
        config = SchedulerConfig(
            Part("horus", self.parameters), estimator=Part("predicted", {"usage": self.uses}), round_s=60.0
        )
        return Harness(config, table=self.table(), residents=2).cluster(self.cluster).submit(*jobs)

    def limit(self, job: Job) -> float:
        return job.max_slowdown if job.max_slowdown < math.inf else self.parameters["slo"]

    def need_gb(self, job: Job) -> float:
        if job.kind not in self.uses:
            return job.memory_gb or math.inf
        return max(self.memory[job.kind], job.memory_gb)

    def may_share(self, *jobs: Job) -> bool:
        """Whatever that does to their speed."""
        room = self.parameters["max_memory"] * self.cluster.types[0].memory_gb
        needs = sum(map(self.need_gb, jobs))
        busy = sum(self.uses.get(job.kind, (100.0, 0.0))[0] for job in jobs)
        return (
            len(jobs) <= 2
            and all(self.limit(job) > 1 and job.kind in self.uses for job in jobs)
            and needs < math.inf
            and needs <= room * (1 + HALF)
            and sum(self.memory[job.kind] for job in jobs) <= self.cluster.types[0].memory_gb
            and busy <= self.parameters["max_utilization"] * (1 + HALF)
        )


def standing(harness: Harness) -> dict[str, tuple[int, ...]]:
    numbers = harness.state.snapshot(0.0).jobs.runners.number.tolist()
    return {harness.state.job_of[number].name: tuple(harness.state.device_map.of(number).tolist()) for number in numbers}


def check_capacity(world: World, held: dict[str, tuple[int, ...]]) -> None:
    jobs = {job.name: job for job in world.jobs}
    there: dict[int, list[str]] = {}
    used = np.zeros(len(world.cluster.nodes))
    for name, places in held.items():
        assert len(places) == jobs[name].workers
        for place in places:
            there.setdefault(place, []).append(name)
            used[world.cluster.node_of[place]] += jobs[name].cpus
    assert (used <= world.cluster.node_cpus * (1 + HALF)).all(), "CPUs"
    for names in there.values():
        assert len(names) <= 2
        assert len({held[name] for name in names}) == 1, "they share all of their accelerators"
        if len(names) == 2:
            assert world.may_share(*(jobs[name] for name in names)), names


def check_slos(world: World, harness: Harness, held: dict[str, tuple[int, ...]], launched: frozenset[str]) -> None:
    """Nobody has come where it, or who is there, is predicted to be slower than it may be."""
    view = harness.state.snapshot(harness.loop.backend.now)
    rates = harness.loop.stages.estimator.rates(view)
    row = dict(zip(view.jobs.number.tolist(), rates.row.tolist()))
    for one, two in combinations(held, 2):
        if held[one] == held[two] and {one, two} & launched:
            mine, theirs = (row[harness.number(name)] for name in (one, two))
            for job, own, other in ((one, mine, theirs), (two, theirs, mine)):
                slower = rates.alone[own, 0] / rates.paired[own, other, 0]
                assert slower <= world.limit(harness.state.job_of[harness.number(job)]) * (1 + HALF)


def check_nobody_waits_who_could_run(world: World, harness: Harness, held: dict[str, tuple[int, ...]]) -> None:
    """An idle accelerator for each worker, with CPUs beside it, would do for anybody."""
    node_of, spare = world.cluster.node_of, world.cluster.node_cpus.copy()
    jobs = {job.name: job for job in world.jobs}
    for name, places in held.items():
        for place in places:
            spare[node_of[place]] -= jobs[name].cpus
    idle = [place for place in range(world.cluster.size) if all(place not in places for places in held.values())]
    view = harness.state.snapshot(harness.loop.backend.now)
    for number in view.jobs.number[~view.jobs.running].tolist():
        job = harness.state.job_of[number]
        room = 0
        for node in range(len(world.cluster.nodes)):
            free = sum(node_of[place] == node for place in idle)
            room += free if not job.cpus else min(free, math.floor(min(free, max(spare[node], 0) / job.cpus + HALF)))
        assert room < job.workers, f"{job.name} waits beside {room} idle accelerators"


@pytest.mark.parametrize("seed", range(60))
def test_placements_are_feasible_and_no_job_waits_beside_enough_idle_accelerators(seed: int):
    world = World(seed)
    harness = world.harness(world.jobs)
    for _ in range(ROUNDS):
        now = harness.round()
        held = standing(harness)
        check_capacity(world, held)
        check_slos(world, harness, held, now.launched)
        check_nobody_waits_who_could_run(world, harness, held)
    harness.run()


@pytest.mark.parametrize("seed", range(20))
def test_job_numbers_only_break_ties(seed: int):
    world = World(seed)
    plain = world.harness(world.jobs)
    before = [of("a", f"gone{n}", allowed_types=("nowhere",)) for n in range(7)]  # refused at the door; numbers are used up
    later = world.harness([*before, *world.jobs])
    for _ in range(ROUNDS):
        plain.round()
        later.round()
        assert standing(plain) == standing(later)


@pytest.mark.parametrize("seed", range(30))
def test_queues_do_not_depend_on_order_and_every_job_has_one_turn(seed: int):
    draw = np.random.default_rng(seed)
    many, k, beta = int(draw.integers(0, 12)), int(draw.integers(1, 20)), int(draw.integers(1, 6))
    features = draw.integers(0, 4, (many, 4)).astype(float) * draw.choice([0.0, 1.0, 1e9], 4)
    queue, mixed = clustered(features, k), draw.permutation(many)
    assert len(set(queue.tolist())) <= min(k, max(many, 1))
    assert clustered(features[mixed], k).tolist() == queue[mixed].tolist()
    turns = [at for batch in weighted_turns(queue, draw.uniform(0, 9, many), np.arange(many), beta) for at in batch]
    assert sorted(turns) == list(range(many))


def test_there_are_at_most_as_many_queues_as_jobs():
    harness = World(3).harness([of("a", "only")])
    assert harness.policy(Horus(queues=50, beta=1)).round().running == {"only"}
    harness.run()
