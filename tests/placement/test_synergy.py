"""Synergy: CPUs and host memory by profile; nobody slower than with its share, nothing given twice, and what it is good for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.config.schedulers import Part, SchedulerConfig
from fairlead.core.cluster import Cluster, Node
from fairlead.core.errors import InputError
from fairlead.core.events import RoundPlanned
from fairlead.core.job import Job
from fairlead.core.rng import stream
from fairlead.engine.codec import decode, encode
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.models.sensitivity import Curve, Sensitivity
from fairlead.placement.synergy import HostedJob, Synergy, allocate_hosts
from fairlead.simulator.backend import SimulatedBackend
from fairlead.testing import Harness, PlacementContract, job
from fairlead.testing.contracts import SCENES, play
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead.workloads.transform import HostSensitiveDynamics, with_host_sensitivity

HUNGRY = {"image": "3@1|9@2.4", "speech": "3@1|10@2.6", "video": "3@1|12@2.9"}
MODEST = {"text": "1@1", "graph": "1@1", "game": "1@1"}
SIZES = (1, 2, 4, 8)


class TestSynergyTuned(PlacementContract):
    make = staticmethod(lambda: Synergy(memory_gb={"kind-1": "4@0.5|20@1"}))


class TestSynergyProportional(PlacementContract):
    make = staticmethod(lambda: Synergy("proportional"))


def table_of(kinds: tuple[str, ...]) -> ThroughputTable:
    keys = (("", 1), *((kind, workers) for kind in kinds for workers in SIZES))
    ones = np.ones((len(keys), 1))
    return ThroughputTable(("v100",), keys, ones, ones, np.zeros((len(keys), len(keys), 1)), "made up")


def sixteen_nodes() -> Cluster:
    return Cluster(tuple(Node(f"n{i}", "v100", 8, cpus=24.0, memory_gb=500.0) for i in range(16)))


def workload(jobs: int, hungry: float, seed: int = 0, load: float = 0.9) -> Trace:
    """Jobs that ask, with proportional CPUs, for so much of the sixteen nodes; some of them can use more CPUs."""
    rng = stream(seed, "testing", "synergy")
    workers, seconds = rng.choice(SIZES, jobs, p=(0.7, 0.1, 0.15, 0.05)), 60 * 10 ** rng.uniform(1.5, 3.0, jobs)
    submitted = np.cumsum(rng.exponential(float((workers * seconds).mean()) / (load * 128), jobs))
    kinds = [str(rng.choice(list(HUNGRY if rng.random() < hungry else MODEST))) for _ in range(jobs)]
    columns = zip(submitted.tolist(), seconds.tolist(), kinds, workers.tolist())
    trace = Trace.of([Job(f"job-{i}", *each) for i, each in enumerate(columns)], "made up")
    return with_host_sensitivity(trace, {name: Sensitivity(Curve.parse(text)) for name, text in {**HUNGRY, **MODEST}.items()})


def average_jct_s(trace: Trace, allotment: str) -> float:
    placement = Part("synergy", {"allotment": allotment, "cpus": {**HUNGRY, **MODEST}})
    given = Simulation(trace, sixteen_nodes(), SchedulerConfig(Part("fifo"), placement=placement), table_of((*HUNGRY, *MODEST)))
    return summarize(run_simulation(given).record).average_jct_s


def test_where_half_of_the_jobs_can_use_more_cpus_tuning_is_worth_a_third():
    trace = workload(300, hungry=0.5)
    proportional, tuned, optimal = (average_jct_s(trace, way) for way in ("proportional", "tune", "optimal"))
    assert proportional / tuned >= 1.3
    assert proportional / optimal >= 1.3


def test_where_nobody_can_tuning_changes_nothing():
    trace = workload(200, hungry=0.0)
    assert average_jct_s(trace, "tune") == pytest.approx(average_jct_s(trace, "proportional"), rel=0.01)


def machine(**fields: object) -> Cluster:
    return Cluster((Node("n0", "v100", 4, cpus=12.0, memory_gb=64.0),))


def at_work(placement: Synergy, *jobs: Job) -> tuple[Loop, MemoryJournal]:
    kinds = tuple({job.kind: None for job in jobs})
    table, journal = table_of(kinds), MemoryJournal()
    dynamics = {job.name: HostSensitiveDynamics(placement.profiles[job.kind]) for job in jobs if job.kind in placement.profiles}
    stages = SchedulerConfig().build(table)
    stages = type(stages)(**{**stages.__dict__, "placement": placement})
    cluster = machine()
    return Loop(State(cluster), SimulatedBackend(cluster, table, jobs, dynamics=dynamics), stages, journal=journal), journal


def advance(loop: Loop, second: float) -> None:
    for event in loop.backend.wait(second, 0.0):
        loop.record(event)
    loop.step()


def test_who_can_use_more_gets_what_others_leave_and_gives_it_back():
    placement = Synergy(cpus={"image": "3@1|9@2.5", "text": "1@1"})
    jobs = [Job("hungry", 0.0, 10_000.0, "image"), Job("modest", 0.0, 1000.0, "text"), Job("late", 300.0, 3000.0, "text", 2)]
    loop, _ = at_work(placement, *jobs)
    advance(loop, 0.0)
    state = loop.state.all_jobs()
    assert state.cpus_given.tolist() == [9.0, 1.0]
    assert state.memory_given_gb.tolist() == [16.0, 16.0]
    assert state.rate.tolist() == [2.5, 1.0]
    advance(loop, 300.0)
    assert loop.state.all_jobs().cpus_given.tolist() == [9.0, 1.0, 1.0], "12 less 1 less 2 times 1"
    assert loop.state.all_jobs().starts.tolist() == [1, 1, 1]


def test_a_newcomer_has_its_share_whoever_has_more():
    placement = Synergy(cpus={"image": "3@1|12@4"})
    loop, journal = at_work(placement, Job("first", 0.0, 10_000.0, "image"), Job("second", 300.0, 3000.0, "image", 2))
    advance(loop, 0.0)
    assert loop.state.all_jobs().rate.tolist() == [4.0]
    advance(loop, 300.0)
    assert loop.state.all_jobs().cpus_given.tolist() == [6.0, 3.0], "two times 3 is the gang's share"
    assert loop.state.all_jobs().rate.tolist() == [2.0, 1.0]
    assert loop.state.all_jobs().moves.tolist() == [1, 0]
    planned = [event for event in journal.events if isinstance(event, RoundPlanned)]
    assert planned[-1].plan.launches.cpus.tolist() == [3.0, 6.0]
    again = decode(encode(planned[-1])).plan.launches
    assert (again.cpus.tolist(), again.host_memory_gb.tolist()) == ([3.0, 6.0], [16.0, 16.0])


def test_what_a_plan_says_of_hosts_is_journaled_only_where_it_says_something():
    harness = Harness().cluster("v100:4").submit(job("a"))
    harness.run()
    assert not any(b"cpus" in encode(event) for event in harness.journal.events if isinstance(event, RoundPlanned))


def test_who_must_not_be_stopped_has_no_more_than_its_share():
    placement = Synergy(cpus={"image": "3@1|12@4"})
    loop, _ = at_work(placement, Job("bound", 0.0, 10_000.0, "image", min_run_s=600.0))
    advance(loop, 0.0)
    assert loop.state.all_jobs().cpus_given.tolist() == [3.0]


def test_a_world_goes_on_from_a_moment_with_the_same_cpus():
    placement = Synergy(cpus={"image": "3@1|9@2.5"})
    loop, _ = at_work(placement, Job("hungry", 0.0, 10_000.0, "image"))
    advance(loop, 0.0)
    dynamics = {"hungry": HostSensitiveDynamics(placement.profiles["image"])}
    fork = SimulatedBackend.from_snapshot(loop.state.snapshot(0.0), table_of(("image",)), [], dynamics=dynamics)
    assert fork.world.columns["rate"][0] == 2.5


def test_without_a_plan_for_hosts_everybody_has_its_share():
    curve = Sensitivity(Curve.parse("3@1|9@2.5"), Curve.parse("16@0.5|32@1"))
    cluster, table = machine(), table_of(("image",))
    backend = SimulatedBackend(
        cluster, table, [Job("job", 0.0, 1000.0, "image")], dynamics={"job": HostSensitiveDynamics(curve)}
    )
    loop = Loop(State(cluster), backend, SchedulerConfig().build(table))
    advance(loop, 0.0)
    assert loop.state.all_jobs().rate.tolist() == [0.5]


def test_rounds_can_be_skipped_and_no_node_gives_more_than_it_has():
    profiles = {"kind-0": "1@0.6|6@2", "kind-1": "2@1", "kind-2": "4@1|9@3"}

    def stages(table):
        standard = SchedulerConfig.from_data({"policy": "las"}).build(table)
        return type(standard)(**{**standard.__dict__, "placement": Synergy("optimal", profiles, {"kind-0": "8@0.9|40@1"})})

    def watch(plan, view):
        jobs = view.jobs
        owner, place = view.device_map.places(jobs.number[jobs.running])
        node, row = view.cluster.node_of[place], jobs.number.searchsorted(owner)
        for amount, there in (
            (jobs.cpus_given, view.cluster.node_cpus),
            (jobs.memory_given_gb, view.cluster.node_memory_gb),
        ):
            assert (np.bincount(node, amount[row], len(there)) <= there * (1 + 1e-9)).all()

    for where, seed in SCENES:
        skipping, stepping = (
            play(stages, where, seed, hosts=True, faults=True, skip=skip, on_decision=watch)[1] for skip in (True, False)
        )
        assert [encode(e) for e in skipping] == [encode(e) for e in stepping]


@st.composite
def hosted_jobs(draw):
    """Single workers on one node of four with 12 CPUs and 64 GB, each with profiles of its own."""
    found = []
    for number in range(draw(st.integers(1, 4))):
        cpus = Curve(((float(draw(st.integers(1, 4))), 1.0), (float(draw(st.integers(5, 12))), draw(st.floats(1.0, 3.0)))))
        memory = Curve(((8.0, 0.5), (float(draw(st.sampled_from([16, 24, 32]))), 1.0))) if draw(st.booleans()) else None
        wants = (cpus.enough, memory.enough if memory else 16.0)
        found.append(HostedJob(number, {0: 1}, (3.0, 16.0), wants, Sensitivity(cpus, memory)))
    return found


@given(hosted_jobs())
@settings(max_examples=60, deadline=None)
def test_a_division_is_within_what_there_is_slows_nobody_and_the_best_is_best(mine):
    there, best_devices = np.array([[12.0], [64.0]]), 0.0
    total = {}
    for way in ("proportional", "tune", "optimal"):
        found = allocate_hosts(mine, there, way)
        assert (np.sum(list(found.values()), axis=0) <= there[:, 0] + 1e-6).all()
        ratios = [t.sensitivity.speed(*found[t.number]) / t.sensitivity.speed(*t.share) for t in mine]
        assert min(ratios) >= 1 - 1e-9
        total[way] = sum(ratios)
    cpus = [[t.least[0], *(c for c in range(1, 13) if c > t.least[0])] for t in mine]
    grid = [[(c, m) for c in cs for m in (t.least[1], 16, 24, 32)] for t, cs in zip(mine, cpus)]
    if len(mine) <= 2:
        for amounts in itertools.product(*grid):
            if (np.sum(amounts, axis=0) <= there[:, 0]).all():
                ratio = [t.sensitivity.speed(*a) / t.sensitivity.speed(*t.share) for t, a in zip(mine, amounts)]
                best_devices = max(best_devices, sum(ratio))
        assert total["optimal"] >= best_devices - 1e-9
    assert total["tune"] >= total["proportional"] - 1e-9


@pytest.mark.parametrize("text", ["", "3", "3@1|2@2", "3@2|4@1", "0@1", "3@0", "3@1|inf@2", "a@b"])
def test_a_curve_that_is_none_is_refused_with_what_was_expected(text):
    with pytest.raises(InputError, match=r"placement synergy: field 'cpus'.*ascending"):
        Synergy(cpus={"image": text})


def test_a_way_that_nobody_knows_is_refused():
    with pytest.raises(InputError, match="field 'allotment' is 'greedy'"):
        Synergy("greedy")


def test_a_curve_is_straight_between_points_in_proportion_below_and_flat_above():
    curve = Curve.parse("2@1|6@3|8@3")
    assert [curve.speed(amount) for amount in (0.0, 1.0, 2.0, 4.0, 6.0, 100.0)] == [0.0, 0.5, 1.0, 2.0, 3.0, 3.0]
    assert curve.enough == 6.0
