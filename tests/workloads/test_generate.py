"""Generated workloads follow the papers' distributions, and one option moves nothing but what it names."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.core.errors import InputError
from fairlead.core.job import TIMED, model_of
from fairlead.workloads.catalogue import catalogue, memory_gb_of
from fairlead.workloads.generate import Generator
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import check_job

MANY = 20_000


def durations_of(trace, table=None, reference="v100") -> np.ndarray:
    """Run times alone on the reference type, worked back from steps and rates."""
    table = table or catalogue()
    column = table.types.index(reference)
    return np.array([job.steps / table.alone[table.row(job.kind, job.workers), column] for job in trace.jobs])


def shares(values) -> dict:
    counts = Counter(values)
    return {value: count / counts.total() for value, count in counts.items()}


# the whole


def test_the_same_seed_gives_the_same_jobs_and_another_does_not():
    generator = Generator(jobs=50, workers="multiple", users=3, slos=(1.2, 2, 10))
    assert generator.trace(7) == generator.trace(7)
    assert generator.trace(7).jobs != generator.trace(8).jobs


def test_jobs_are_named_in_the_order_of_arrival():
    trace = Generator(jobs=12, jobs_per_hour=60).trace(1)
    assert [job.name for job in trace.jobs[:2]] == ["job-0000", "job-0001"]
    assert [job.name for job in trace.jobs] == sorted(job.name for job in trace.jobs)
    assert len(trace) == 12


def test_more_jobs_begin_with_the_same_jobs():
    assert Generator(jobs=30, workers="multiple").trace(3).jobs == Generator(jobs=90, workers="multiple").trace(3).jobs[:30]


def test_a_plain_job_asks_for_nothing_special():
    for job in Generator(jobs=20, users=0).trace(0).jobs:
        assert (job.workers, job.weight, job.priority, job.user, job.account) == (1, 1.0, 0, "", "")
        assert (job.deadline_s, job.memory_gb, job.mode) == (math.inf, 0.0, "static")


OPTIONS = {
    "jobs_per_hour": 60.0,
    "durations": (600.0, 6000.0),
    "priorities": 0.4,
    "accounts": {"vision": 0.5, "speech": 0.5},
    "users": 9,
    "slos": (2.0,),
    "modes": {"static": 0.2, "gns": 0.8},
    "memory": True,
}
MOVES = {
    "jobs_per_hour": {"submitted_s"},
    "durations": {"steps"},
    "priorities": {"weight", "priority"},
    "accounts": {"account"},
    "users": {"user"},
    "slos": {"deadline_s"},
    "modes": {"mode", "steps"},
    "memory": {"memory_gb"},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_moves_nothing_but_what_it_names(option):
    plain = Generator(jobs=80).trace(5).jobs
    other = Generator(jobs=80, **{option: OPTIONS[option]}).trace(5).jobs
    names = plain[0].__dataclass_fields__
    moved = {name for name in names for a, b in zip(plain, other) if getattr(a, name) != getattr(b, name)}
    assert moved == MOVES[option]


def test_gangs_leave_single_jobs_as_they_were():
    single, multiple = Generator(jobs=200).trace(2).jobs, Generator(jobs=200, workers="multiple").trace(2).jobs
    both = [(a, b) for a, b in zip(single, multiple) if b.workers == 1]
    assert 100 < len(both) < 180
    assert all(a == b for a, b in both)


# arrivals


def test_arrivals_are_poisson_from_0_on():
    trace = Generator(jobs=MANY, jobs_per_hour=5.6).trace(0)
    gaps = np.diff([job.submitted_s for job in trace.jobs])
    assert trace.jobs[0].submitted_s == 0.0
    assert gaps.mean() == pytest.approx(3600 / 5.6, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)  # as of an exponential
    assert np.median(gaps) == pytest.approx(math.log(2) * 3600 / 5.6, rel=0.05)


def test_a_static_trace_is_all_there_at_once():
    assert {job.submitted_s for job in Generator(jobs=40, jobs_per_hour=None).trace(0).jobs} == {0.0}


# kinds and gangs


def test_kinds_are_uniform():
    found = shares(job.kind for job in Generator(jobs=MANY).trace(0).jobs)
    assert set(found) == set(catalogue().kinds)
    assert all(0.75 / 26 < share < 1.25 / 26 for share in found.values())


def test_a_subset_by_kind_or_model():
    generator = Generator(jobs=300, kinds=("LM", "A3C", "ResNet-50 (batch size 64)", "A3C"))
    found = shares(job.kind for job in generator.trace(0).jobs)
    assert {model_of(kind) for kind in found} == {"LM", "A3C", "ResNet-50"}
    assert len(found) == 7


def test_gangs_have_the_shares_of_the_paper_and_only_kinds_that_can():
    jobs = Generator(jobs=MANY, workers="multiple").trace(0).jobs
    found = shares(job.workers for job in jobs)
    for size, share in {1: 0.70, 2: 0.10, 4: 0.15, 8: 0.05}.items():
        assert found[size] == pytest.approx(share, abs=0.01)
    sizes = {kind: catalogue().workers_of(kind) for kind in catalogue().kinds}
    assert all(job.workers in sizes[job.kind] for job in jobs)
    assert {model_of(job.kind) for job in jobs if job.workers == 8} == {"ResNet-18", "ResNet-50", "Transformer", "LM"}
    assert any(sizes[job.kind] == (1,) for job in jobs)


def test_shares_of_sizes_can_be_given():
    found = shares(job.workers for job in Generator(jobs=MANY, workers={2: 0.25, 4: 0.75, 8: 0.0}).trace(0).jobs)
    assert found == pytest.approx({2: 0.25, 4: 0.75}, abs=0.015)


# durations


def test_gavels_durations():
    minutes = durations_of(Generator(jobs=MANY).trace(0)) / 60
    x = np.log10(minutes)
    # Steps are whole, and the slowest kind takes half a second for one: times are exact to that.
    assert x.min() > 1.5 - 1e-3
    assert x.max() < 4 + 1e-3
    assert (x > 3).mean() == pytest.approx(0.2, abs=0.012)
    short, long = x[x <= 3], x[x > 3]
    assert np.quantile(short, [0.25, 0.5, 0.75]) == pytest.approx([1.875, 2.25, 2.625], abs=0.03)
    assert np.quantile(long, [0.25, 0.5, 0.75]) == pytest.approx([3.25, 3.5, 3.75], abs=0.04)
    # E[10^x] by hand: 0.8 (10³ − 10^1.5) / (1.5 ln 10) + 0.2 (10⁴ − 10³) / ln 10
    mean = 0.8 * (1e3 - 10**1.5) / (1.5 * math.log(10)) + 0.2 * 9e3 / math.log(10)
    assert minutes.mean() == pytest.approx(mean, rel=0.05)


def test_given_durations_are_drawn_alike_and_gangs_are_timed_as_gangs():
    trace = Generator(jobs=3000, durations=(600.0, 6000.0), workers="multiple", kinds=("LM",)).trace(0)
    seconds = durations_of(trace)
    near = np.where(seconds < 2000, 600.0, 6000.0)
    assert seconds == pytest.approx(near, rel=1e-3)
    assert (near == 600.0).mean() == pytest.approx(0.5, abs=0.04)


def test_the_reference_type_sets_the_steps():
    on = {name: Generator(jobs=40, reference_type=name, kinds=("A3C",)).trace(0).jobs for name in ("k80", "h200")}
    table = catalogue()
    a3c = table.row("A3C", 1)
    ratio = table.alone[a3c, table.types.index("h200")] / table.alone[a3c, table.types.index("k80")]
    assert [b.steps / a.steps for a, b in zip(on["k80"], on["h200"])] == pytest.approx([ratio] * 40, rel=1e-3)


def test_shockwaves_size_classes():
    trace = Generator(jobs=MANY, durations="shockwave", workers={1: 0.25, 2: 0.25, 4: 0.25, 8: 0.25}).trace(0)
    hours = durations_of(trace) / 3600
    workers = np.array([job.workers for job in trace.jobs])
    size = hours * workers
    edges = [0.2, 8, 16, 72, 144]
    found = np.histogram(size, [0.19, *edges[1:4], 145])[0] / len(size)
    assert found == pytest.approx([0.72, 0.20, 0.05, 0.03], abs=0.012)
    assert np.median(size[size < 8]) == pytest.approx(4.1, abs=0.15)
    within = (hours > 0.199) & (hours < 5.001)
    assert within[size < 39.9].all()
    assert (workers[size > 40.1] == 8).all()  # more than 5 hours on 8: the most workers, and longer
    assert hours.max() <= 18.001
    assert set(workers[size < 8].tolist()) == {1, 2, 4, 8}


def test_shockwaves_sizes_with_one_worker_just_take_longer():
    hours = durations_of(Generator(jobs=2000, durations="shockwave").trace(0)) / 3600
    assert hours.max() > 72


# who and by when


def test_priorities_entities_users_slos_and_modes():
    generator = Generator(
        jobs=MANY,
        priorities=0.2,
        accounts={"vision": 0.6, "speech": 0.4},
        users=4,
        slos=(1.2, 2.0, 10.0),
        modes={"static": 0.2, "accordion": 0.3, "gns": 0.5},
    )
    trace = generator.trace(0)
    assert shares((job.weight, job.priority) for job in trace.jobs) == pytest.approx({(5.0, 1): 0.2, (1.0, 0): 0.8}, abs=0.012)
    assert shares(job.account for job in trace.jobs) == pytest.approx({"vision": 0.6, "speech": 0.4}, abs=0.015)
    assert shares(job.user for job in trace.jobs) == pytest.approx({f"user-0{i}": 0.25 for i in range(4)}, abs=0.015)
    steady = np.array([job.name not in trace.dynamics for job in trace.jobs])  # of the others the table does not tell
    multiples = (np.array([job.deadline_s for job in trace.jobs]) / durations_of(trace))[steady]
    nearest = np.array([1.2, 2.0, 10.0])[np.abs(multiples[:, None] - [1.2, 2.0, 10.0]).argmin(axis=1)]
    assert multiples == pytest.approx(nearest, rel=2e-3)
    assert shares(nearest.tolist()) == pytest.approx({1.2: 1 / 3, 2.0: 1 / 3, 10.0: 1 / 3}, abs=0.03)
    can_change = [job.mode for job in trace.jobs if job.kind not in ("A3C", "CycleGAN")]
    assert shares(can_change) == pytest.approx({"static": 0.2, "accordion": 0.3, "gns": 0.5}, abs=0.015)
    assert {job.mode for job in trace.jobs if job.kind in ("A3C", "CycleGAN")} == {"static"}


def test_memory_is_the_catalogues():
    assert all(job.memory_gb == memory_gb_of(job.kind) for job in Generator(jobs=60, memory=True).trace(0).jobs)


def test_a_table_of_durations_gives_timed_jobs():
    trace = Generator(jobs=200, table=ThroughputTable.timed(["v100"]), workers={3: 0.5, 5: 0.5}, durations=(90.5,)).trace(0)
    assert {(job.kind, job.steps) for job in trace.jobs} == {(TIMED, 90.5)}
    assert {job.workers for job in trace.jobs} == {3, 5}


BAD = [
    ({"jobs": 0}, "jobs"),
    ({"jobs": 2.5}, "jobs"),
    ({"jobs_per_hour": 0}, "jobs_per_hour"),
    ({"jobs_per_hour": math.nan}, "jobs_per_hour"),
    ({"kinds": ("ResNet-51",)}, "kinds"),
    ({"reference_type": "tpu"}, "reference_type"),
    ({"durations": "long"}, "durations"),
    ({"durations": ()}, "durations"),
    ({"durations": (60.0, -1.0)}, "durations"),
    ({"workers": "many"}, "workers"),
    ({"workers": {1: 0.7, 2: 0.1}}, "workers"),
    ({"workers": {0: 1.0}}, "workers"),
    ({"workers": {16: 1.0}}, "workers"),
    ({"kinds": ("A3C",), "workers": "multiple"}, "workers"),
    ({"priorities": 1.5}, "priorities"),
    ({"priorities": 0.5, "high_weight": 0.0}, "high_weight"),
    ({"accounts": {"a": 0.5, "b": 0.6}}, "accounts"),
    ({"users": -1}, "users"),
    ({"slos": (1.2, 0.0)}, "slos"),
    ({"modes": {"static": 0.5, "dynamic": 0.5}}, "modes"),
    ({"table": ThroughputTable.timed(["v100"]), "memory": True}, "memory"),
]


@pytest.mark.parametrize(("parameters", "field"), BAD, ids=[f"{field}-{i}" for i, (_, field) in enumerate(BAD)])
def test_bad_parameters_are_named_at_once(parameters, field):
    with pytest.raises(InputError, match="generator") as caught:
        Generator(**parameters)
    assert (caught.value.source, caught.value.field) == ("generator", field)


def test_a_near_kind_is_suggested_and_a_bad_seed_refused():
    with pytest.raises(InputError, match="did you mean 'ResNet-5"):
        Generator(kinds=("ResNet-51",))
    with pytest.raises(InputError, match="seed"):
        Generator().trace(-1)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**40),
    jobs=st.integers(1, 40),
    rate=st.one_of(st.none(), st.floats(0.01, 1e4)),
    durations=st.sampled_from(["gavel", "shockwave", (1.0, 1e6)]),
    workers=st.sampled_from(["single", "multiple", {2: 0.5, 8: 0.5}]),
    slos=st.lists(st.floats(0.1, 20), max_size=3).map(tuple),
    users=st.integers(0, 3),
)
def test_every_job_is_one_that_a_reader_would_accept(seed, jobs, rate, durations, workers, slos, users):
    generator = Generator(jobs, rate, durations=durations, workers=workers, slos=slos, users=users)
    trace = generator.trace(seed)
    assert len({job.name for job in trace.jobs}) == len(trace) == jobs
    assert [job.submitted_s for job in trace.jobs] == sorted(job.submitted_s for job in trace.jobs)
    for job in trace.jobs:
        assert check_job(job, "generator", None) is None
        assert catalogue().row(job.kind, job.workers) > 0
