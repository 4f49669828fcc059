"""Horus: queues of similar jobs, the cheapest places, company that is parted when it does harm, memory that did not suffice."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError
from fairlead.core.events import JobsFailed, JobsInterrupted
from fairlead.core.job import Job, Phase
from fairlead.policies.colocation.horus import Horus, clustered, weighted_turns
from fairlead.policies.colocation.packers import OpportunisticPacking, PerformanceAwarePacking
from fairlead.simulator.backend import OUT_OF_MEMORY
from fairlead.simulator.costs import Costs
from fairlead.testing import Harness
from fairlead.workloads.throughput_tables import MeasuredTraining, colocation_table

BUSY = {"light": 20.0, "middle": 55.0, "heavy": 95.0, "worse": 20.0}
MEMORY = {"light": 2.0, "middle": 4.0, "heavy": 8.0, "worse": 2.0}


def slower(one: str, other: str) -> float:
    """The truth: heavy ones halve each other, the worse one is not what it seems, and nobody else minds much."""
    if "worse" in (one, other):
        return 2.5
    return {("heavy", "heavy"): 1.9, ("light", "heavy"): 1.3, ("heavy", "light"): 1.1}.get((one, other), 1.05)


def table(sizes=(1, 2, 4, 8)):
    return colocation_table("gpu", [MeasuredTraining(kind, 1.0, BUSY[kind], MEMORY[kind]) for kind in BUSY], slower, sizes)


def machine(nodes: int = 1, size: int = 2, memory_gb: float = 16.0, cpus: float = 1e9) -> Cluster:
    made = tuple(Node(f"n{i}", "gpu", size, cpus=cpus) for i in range(nodes))
    return Cluster(made, (AcceleratorType("gpu", memory_gb),))


def believed(**changes: tuple[float, float]) -> Part:
    return Part("predicted", {"usage": {**{kind: (BUSY[kind], MEMORY[kind]) for kind in BUSY}, **changes}})


def scene(policy: str = "horus", on: Cluster | None = None, estimator: Part | None = None, round_s: float = 60.0, **parameters):
    config = SchedulerConfig(Part(policy, parameters), estimator=estimator or believed(), round_s=round_s)
    return Harness(config, table=table(), residents=2).cluster(on or machine())


def of(kind: str, name: str, workers: int = 1, seconds: float = 3600.0, **others) -> Job:
    return Job(name, others.pop("at", 0.0), seconds * workers, kind, workers, **others)


def together(harness: Harness) -> set[frozenset[str]]:
    """Who shares accelerators with whom."""
    held: dict[tuple[int, ...], set[str]] = {}
    for number in harness.state.snapshot(0.0).jobs.runners.number.tolist():
        held.setdefault(tuple(harness.state.device_map.of(number).tolist()), set()).add(harness.state.job_of[number].name)
    return {frozenset(names) for names in held.values()}


# Queues.


def test_similar_jobs_are_in_one_queue_deterministically():
    features = np.array([[1, 0.2, 1, 2], [1, 0.25, 1, 2], [8, 0.9, 1, 30], [8, 0.95, 1, 32], [1, 0.9, 1, 30]], dtype=float)
    queue = clustered(features, 3)
    assert queue[0] == queue[1]
    assert queue[2] == queue[3]
    assert len({queue[0], queue[2], queue[4]}) == 3
    assert np.array_equal(queue, clustered(features, 3))
    assert clustered(features, 1).tolist() == [0] * 5
    assert len(set(clustered(features[:2], 9).tolist())) == 2


def test_turns_of_a_queue_follow_its_length_and_median_wait():
    queue = np.array([0] * 12 + [1] * 4)
    waited = np.array([10.0] * 12 + [90.0] * 4)
    first, *rest = weighted_turns(queue, waited, np.arange(16), 8)
    assert sum(at >= 12 for at in first) == 4, "weights are 120 and 360, and the second queue has no more"
    assert sorted([*first, *(at for batch in rest for at in batch)]) == list(range(16))
    fresh = next(weighted_turns(queue, np.zeros(16), np.arange(16), 8))
    assert sum(at >= 12 for at in fresh) == 2, "where nobody has waited, lengths count"


def test_the_longest_wait_goes_first_in_a_queue():
    (batch,) = weighted_turns(np.zeros(3, dtype=np.int64), np.array([5.0, 50.0, 20.0]), np.arange(3), 15)
    assert batch == [1, 2, 0]


# Places.


def test_idle_accelerators_come_first_then_the_cheapest_colocation():
    harness = scene().submit(of("heavy", "h1"), of("light", "l1"), of("heavy", "h2"), of("light", "l2"))
    assert harness.round().running == {"h1", "l1", "h2", "l2"}
    assert together(harness) == {frozenset({"h1", "l2"}), frozenset({"l1", "h2"})}
    harness.run()


def test_opportunistic_packing_considers_memory_only():
    harness = scene("opportunistic-packing").submit(of("heavy", "h1"), of("middle", "m1"), of("heavy", "h2"), of("light", "l2"))
    harness.round()
    assert together(harness) == {frozenset({"h1", "l2"}), frozenset({"m1", "h2"})}, "12 of 16 GB on both"
    harness.run()


def test_no_job_is_placed_without_enough_memory():
    harness = scene(on=machine(size=1, memory_gb=9.0)).submit(of("heavy", "h"), of("light", "l"), of("light", "l2"))
    assert harness.round().running == {"h"}
    harness.run()
    assert harness.ended_s("l") == pytest.approx(3600 + 3600 * 1.05)


def test_a_job_without_a_prediction_is_not_colocated():
    harness = scene(on=machine(size=1), estimator=Part("predicted", {"usage": {"light": (20.0, 2.0)}}))
    assert harness.submit(of("middle", "m"), of("light", "l")).round().running == {"m"}


def test_hosts_are_part_of_the_capacity():
    harness = scene(on=machine(nodes=2, size=2, cpus=4.0))
    harness.submit(*(of("light", f"l{i}", cpus=2.0) for i in range(5)))
    assert harness.round().running == {"l0", "l1", "l2", "l3"}


def test_a_job_can_exclude_colocation_in_any_order():
    harness = scene(on=machine(size=1)).submit(of("light", "mine", max_slowdown=1.0), of("light", "other"))
    assert harness.round().running == {"mine"}
    harness = scene(on=machine(size=1)).submit(of("light", "other"), of("light", "mine", max_slowdown=1.0))
    assert harness.round().running == {"other"}


def test_over_commitment_is_limited():
    jobs = (of("heavy", "h1"), of("heavy", "h2"), of("light", "l"))
    assert scene(on=machine(size=1)).submit(*jobs).round().running == {"h1", "h2"}
    assert scene(on=machine(size=1), max_utilization=120).submit(*jobs).round().running == {"h1", "l"}
    assert scene(on=machine(size=1), max_memory=0.9).submit(*jobs).round().running == {"h1", "l"}
    assert scene(on=machine(size=1), max_jobs=1).submit(*jobs).round().running == {"h1"}
    assert scene(on=machine(size=1), slo=1.5).submit(*jobs).round().running == {"h1", "l"}


def test_more_than_two_jobs_can_share():
    config = SchedulerConfig(Part("horus", {"max_jobs": 3}), estimator=believed(), round_s=60.0)
    harness = Harness(config, table=table(), residents=3).cluster(machine(size=1))
    harness.submit(*(of("light", f"l{i}") for i in range(4)))
    assert harness.round().running == {"l0", "l1", "l2"}
    harness.run()


def test_large_gangs_prefer_few_nodes_over_low_cost():
    """What is idle is on two nodes; on one there is a gang to share with."""
    cluster = Cluster(tuple(Node(f"n{size}", "gpu", size) for size in (8, 4, 5)), (AcceleratorType("gpu", 16.0),))
    for local_from, shares in ((8, True), (9, False)):
        harness = scene(on=cluster, local_from=local_from)
        harness.submit(of("middle", "gang", workers=8), of("middle", "late", workers=8)).round()
        assert (frozenset({"gang", "late"}) in together(harness)) == shares


def test_accelerators_are_reserved_for_a_starving_job():
    """A gang of two cannot get in while short jobs come and go one at a time, unless room is kept for it."""
    jobs = [of("light", f"s{i}", at=100.0 * i, seconds=250.0, max_slowdown=1.0) for i in range(40)]
    wide = of("light", "wide", workers=2, at=50.0, seconds=600.0)
    patient = scene(starving_s=1e6).submit(*jobs, wide).run()
    kept = scene(starving_s=600.0).submit(*jobs, wide).run()
    assert kept.ended_s("wide") < 2000 < patient.ended_s("wide")


def test_accelerators_are_reserved_where_no_job_was_placed_in_this_decision():
    """Of two that starve, the single worker takes the idle accelerator of the first node; then it is the second node that has
    one in use only, and the next newcomer must not take its other one from the gang."""
    harness = scene(on=machine(nodes=2, size=2), starving_s=120.0)
    short = [of("light", f"s{i}", seconds=170.0, max_slowdown=1.0) for i in range(2)]
    long = [of("light", f"l{i}", seconds=2000.0, max_slowdown=1.0) for i in range(2)]
    harness.submit(short[0], long[0], short[1], long[1]).round()
    harness.submit(of("light", "one", seconds=9000.0, max_slowdown=1.0), of("light", "gang", workers=2, max_slowdown=1.0))
    harness.round()
    harness.submit(of("light", "late", seconds=9000.0, max_slowdown=1.0))
    assert [names for _ in range(6) if (names := harness.round().launched)] == [{"one"}]


def test_matching_leaves_tolerant_jobs_for_sensitive_ones():
    jobs = (of("light", "l1"), of("heavy", "h1"), of("light", "l2"), of("heavy", "h2"))
    cluster = machine(size=2)
    matching = scene(on=cluster, match=True).submit(*jobs)
    matching.round()
    assert together(matching) == {frozenset({"h1", "l2"}), frozenset({"l1", "h2"})}
    matching.run()


def test_the_next_waiting_job_moves_up_into_the_matching_buffer():
    """Beside the light one the heavy one is to go, which stands behind two others; with a small buffer it is not seen."""
    line = (of("middle", "m1"), of("middle", "m2"), of("heavy", "h2"))
    for beta, beside in ((1, "m1"), (2, "m1"), (3, "h2")):
        harness = scene(on=machine(size=1), match=True, beta=beta).submit(of("light", "l"), *line)
        harness.round()
        assert together(harness) == {frozenset({"l", beside})}
        harness.run()
    harness = scene(on=machine(size=2), match=True, beta=2).submit(of("light", "l"), of("light", "l2", max_slowdown=1.0), *line)
    harness.round()
    assert frozenset({"l", "m1"}) in together(harness), "of the two middle ones, which is all that it sees"


def ends_of(*jobs: Job, **parameters) -> float:
    harness = scene(on=machine(size=1), max_jobs=parameters.pop("max_jobs", 1), **parameters).submit(*jobs).run()
    return max(harness.ended_s(job.name) for job in jobs)


def test_a_critical_job_goes_first():
    short = [of("light", f"s{i}", seconds=600.0) for i in range(12)]
    long = of("light", "long", seconds=6000.0)
    assert ends_of(*short, long, max_jobs=2) > 9000, "the short ones two at a time, and then the long one by itself"
    assert ends_of(*short, long, max_jobs=2, critical=True) < 7600
    harness = scene(on=machine(size=1), critical=True).submit(*short, of("light", "shorter", seconds=2000.0))
    assert "shorter" not in harness.round().running, "there is time for it yet"


def test_an_exclusive_job_counts_for_all_places_of_its_accelerator():
    """4 × 600 s that want to be alone take 2,400 s of the accelerator, and a job of 1,900 s could still wait."""
    alone = [of("light", f"s{i}", seconds=600.0, max_slowdown=1.0) for i in range(4)]
    harness = scene(on=machine(size=1), critical=True).submit(*alone, of("light", "long", seconds=1900.0))
    assert harness.round().running == {"s0"}


# What is seen.


def test_jobs_beyond_the_slo_are_separated_for_good():
    harness = scene(on=machine(size=1), slo=1.5).submit(of("light", "l1"), of("worse", "w1"))
    assert harness.round().running == {"l1", "w1"}, "it was predicted to be harmless"
    assert harness.round().suspended == {"w1"}
    harness.submit(of("worse", "w2"), of("middle", "m"))
    assert harness.round().running == {"l1", "m"}
    harness.run()
    assert harness.phase("w1") is Phase.FINISHED


def test_a_separated_job_moves_to_free_accelerators():
    harness = scene(on=machine(size=2), slo=1.5).submit(of("light", "l1"), of("middle", "m1"), of("worse", "w"))
    harness.round()
    assert {"l1", "w"} in together(harness)
    now = harness.round()
    assert now.suspended == {"w"}
    assert not now.launched, "the other one might be as bad"
    assert harness.round().launched == {"w"}
    assert harness.round().suspended == {"w"}, "it was"
    harness.run()
    alone = scene(on=machine(size=2), slo=1.5).submit(of("light", "l1"), of("light", "l2", seconds=100.0), of("worse", "w"))
    alone.round()
    assert {"l1", "w"} in together(alone)
    assert alone.round().suspended == {"w"}
    assert alone.round().launched == {"w"}, "onto an idle one"
    alone.run()


def test_slow_colocated_jobs_move_to_idle_accelerators_once_no_job_waits():
    jobs = (of("heavy", "h1"), of("middle", "m", seconds=100.0, max_slowdown=1.0), of("heavy", "h2"))
    packed, plain = scene(unpack=1.2).submit(*jobs), scene().submit(*jobs)
    for harness in (packed, plain):
        harness.round()
        assert together(harness) == {frozenset({"h1", "h2"}), frozenset({"m"})}
        harness.run()
    assert [harness.state.all_jobs().moves.sum() for harness in (packed, plain)] == [1, 0]
    assert packed.ended_s("h2") < 3800 < 6800 < plain.ended_s("h2"), "two heavy ones take 1.9 times as long"


def test_one_slow_member_is_enough_to_move_to_idle_accelerators():
    """The light job takes 1.3 times as long beside the heavy one, which takes 1.1 times as long."""
    harness = scene(unpack=1.2).submit(of("heavy", "h"), of("middle", "m", seconds=100.0, max_slowdown=1.0), of("light", "l"))
    harness.round()
    assert together(harness) == {frozenset({"h", "l"}), frozenset({"m"})}
    harness.run()
    assert harness.state.all_jobs().moves.sum() == 1


def test_good_colocation_is_kept():
    harness = scene(on=machine(size=2), unpack=1.2).submit(
        of("light", "l1"), of("middle", "m", seconds=100.0, max_slowdown=1.0)
    )
    harness.submit(of("light", "l2")).round()
    assert frozenset({"l1", "l2"}) in together(harness)
    harness.run()
    assert harness.state.all_jobs().moves.sum() == 0


def test_a_separated_job_is_not_colocated_again_at_once():
    """Nobody is beyond its limit for a second round, whoever waits for its place."""
    harness = scene(on=machine(size=1), slo=1.5, estimator=believed(heavy=(20.0, 2.0)))
    harness.submit(of("heavy", "h1"), of("worse", "w"), of("heavy", "h2"))
    running = [harness.round().running for _ in range(5)]
    assert running == [{"h1", "w"}, {"h1"}, {"h1", "h2"}, {"h1"}, {"h1"}]
    harness.run()


def test_a_job_has_its_own_slowdown_limit():
    patient = scene(on=machine(size=1), slo=1.5).submit(of("light", "l", max_slowdown=3.0), of("worse", "w", max_slowdown=3.0))
    patient.round()
    assert patient.round().suspended == set()
    touchy = scene(on=machine(size=1)).submit(of("light", "l", seconds=100.0, max_slowdown=1.2), of("worse", "w"))
    assert [touchy.round().running for _ in range(4)] == [{"l", "w"}, {"l"}, {"l"}, {"w"}]
    touchy.submit(of("light", "l2"))
    assert touchy.round().running == {"w", "l2"}, "what one does not bear, others may"
    touchy.run()


def test_the_most_recent_job_leaves():
    touchy = scene(on=machine(size=2)).submit(of("light", "l", max_slowdown=1.2), of("worse", "w"), of("worse", "w2"))
    touchy.round()
    touchy.submit(of("light", "l2"))
    assert touchy.round().suspended == {"w2"}
    touchy.run()


def test_a_protected_job_is_not_separated():
    harness = scene(on=machine(size=1), slo=1.5).submit(of("light", "l"), of("worse", "w", min_run_s=200.0))
    harness.round()
    assert harness.round().suspended == {"l"}, "the one that may be"
    harness = scene(on=machine(size=1), slo=1.5)
    harness.submit(of("light", "l", min_run_s=200.0), of("worse", "w", min_run_s=200.0))
    parted = [harness.round().suspended for _ in range(5)]
    assert parted == [set(), set(), set(), set(), {"w"}]


def test_a_job_that_ran_out_of_memory_requests_more():
    too_little = believed(heavy=(95.0, 1.0))
    harness = scene(on=machine(size=1, memory_gb=9.0), estimator=too_little).submit(of("light", "l"), of("heavy", "h"))
    first = harness.round()
    assert first.launched == {"l", "h"}
    assert first.waiting == {"h"}
    assert harness.round().launched == set(), "others leave it 7 GB, which was too little"
    harness.run()
    assert harness.ended_s("h") == pytest.approx(7200)
    told = [event for event in harness.journal.events if isinstance(event, JobsInterrupted)]
    assert [event.own_fault for event in told] == [True]


def test_a_start_that_ran_out_of_memory_was_one_so_the_next_is_a_restart():
    """As the state counts it, so that a world that goes on from a moment of this one has the same ends."""
    config = SchedulerConfig(Part("horus"), estimator=believed(heavy=(95.0, 1.0)), round_s=60.0)
    harness = Harness(config, table=table(), costs=Costs(launch_s=10.0, restart_s=40.0), residents=2)
    harness.cluster(machine(size=1, memory_gb=9.0)).submit(of("light", "l", seconds=3590.0), of("heavy", "h")).run()
    assert harness.ended_s("l") == 3600
    assert harness.ended_s("h") == pytest.approx(3600 + 40 + 3600)


def test_a_job_that_never_fits_fails_when_it_was_tried_too_often():
    harness = scene(on=machine(size=1, memory_gb=7.0)).submit(of("heavy", "h", retry_limit=1), of("light", "l")).run()
    assert harness.phase("h") is Phase.FAILED
    assert [event.why for event in harness.journal.events if isinstance(event, JobsFailed)] == [OUT_OF_MEMORY]
    assert harness.phase("l") is Phase.FINISHED


# The packer that signatures at speeds.


def test_a_job_that_halves_a_rate_returns_after_the_warm_up():
    harness = scene("performance-aware-packing", on=machine(size=1), round_s=20.0).submit(of("light", "l"), of("worse", "w"))
    assert harness.round().running == {"l", "w"}
    assert [harness.round().suspended for _ in range(3)] == [set(), set(), {"w"}]
    harness.submit(of("middle", "m"))
    assert harness.round().running == {"l", "m"}
    harness.run()


def test_a_protected_job_on_trial_is_decided_after_its_protection():
    harness = scene("performance-aware-packing", on=machine(size=1), round_s=60.0)
    harness.submit(of("light", "l"), of("worse", "w", min_run_s=200.0))
    assert [harness.round().suspended for _ in range(5)] == [set(), set(), set(), set(), {"w"}]
    harness.run()


def test_a_finished_trial_does_not_block_others():
    jobs = (of("light", "l1"), of("light", "l2"), of("worse", "w", min_run_s=7200.0), of("light", "l3"))
    harness = scene("performance-aware-packing", on=machine(size=2), round_s=60.0).submit(*jobs)
    assert harness.round().running == {"l1", "l2", "w"}
    assert harness.round().launched == {"l3"}
    harness.run()


def test_one_trial_at_a_time():
    jobs = [of("light", f"l{i}") for i in range(8)]
    harness = scene("performance-aware-packing", on=machine(size=4), round_s=60.0).submit(*jobs)
    assert [len(harness.round().running) for _ in range(4)] == [5, 6, 7, 8]
    harness = scene("performance-aware-packing", on=machine(size=4), trials=4).submit(*jobs)
    assert len(harness.round().running) == 8


def test_start_costs_do_not_count_as_slowdown():
    config = SchedulerConfig(Part("horus", {"slo": 1.5}), estimator=believed(), round_s=60.0)
    harness = Harness(config, table=table(), costs=Costs(launch_s=300.0, restart_s=300.0), residents=2).cluster(machine(size=1))
    harness.submit(of("light", "l1"), of("light", "l2")).run()
    assert harness.state.all_jobs().preemptions.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Horus(queues=0), "queues"),
        (lambda: Horus(beta=0), "beta"),
        (lambda: Horus(memory_weight=-1), "memory_weight"),
        (lambda: Horus(max_utilization=0), "max_utilization"),
        (lambda: Horus(max_memory=0), "max_memory"),
        (lambda: Horus(slo=0.9), "slo"),
        (lambda: Horus(unpack=0.9), "unpack"),
        (lambda: Horus(starving_s=0), "starving_s"),
        (lambda: OpportunisticPacking(max_jobs=0), "max_jobs"),
        (lambda: PerformanceAwarePacking(drop=1.0), "drop"),
        (lambda: PerformanceAwarePacking(warm_up_s=-1.0), "warm_up_s"),
        (lambda: PerformanceAwarePacking(trials=0), "trials"),
    ],
)
def test_bad_parameters_are_named(make, field):
    with pytest.raises(InputError, match=f"field '{field}'"):
        make()
