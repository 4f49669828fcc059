"""Paired differences: by seed over seeds, by windows over a fixed trace; and how often their intervals are right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.experiments.differences import WINDOWS, PairedDifference, find_label, paired_differences, window_means
from fairlead.experiments.metrics import DEFAULTS, interval
from fairlead.experiments.simulate import Simulation, run_simulation
from fairlead.workloads.generate import Generator

REPETITIONS = 400


def test_shared_seeds_make_differences_far_more_certain_than_means() -> None:
    """The jobs of a seed move both schedulers by hours; the difference of the two is minutes."""
    draw = np.random.default_rng(7)
    rows = []
    for seed, common in enumerate(draw.normal(36_000.0, 9_000.0, size=8)):
        for label, offset in (("fifo", 0.0), ("las", -600.0)):
            rows.append(
                {"scheduler": label, "load": 4.0, "seed": seed, "average_jct_s": common + offset + draw.normal(0, 60.0)}
            )
    found = paired_differences(rows, ["average_jct_s"])
    [row] = found.rows
    one = row.metrics["average_jct_s"]
    assert (found.baseline, row.scheduler, row.load, one.pairs) == ("fifo", "las", 4.0, 8)
    assert found.method == "paired by seed, Student's t over 8 seeds"
    assert one.difference == pytest.approx(-600.0, abs=100.0)
    assert one.significant
    _, alone = interval([row["average_jct_s"] for row in rows if row["scheduler"] == "fifo"])
    assert one.half_width < 0.05 * alone
    with pytest.raises(InputError, match="one of fifo, las"):
        paired_differences(rows, ["average_jct_s"], "lass")


def test_intervals_over_seeds_hold_as_often_as_they_say() -> None:
    draw = np.random.default_rng(1)
    held = 0
    for _ in range(REPETITIONS):
        common = draw.normal(100.0, 30.0, size=5)
        pairs = [(base + 3.0 + draw.normal(0, 4.0), base + draw.normal(0, 4.0)) for base in common]
        one = PairedDifference.of(pairs)
        held += abs(one.difference - 3.0) <= one.half_width
    assert 0.92 <= held / REPETITIONS <= 0.98


def test_intervals_over_windows_hold_though_neighbouring_jobs_are_alike() -> None:
    """A queue makes jobs of the same hour alike: here each job's difference is 0.8 of that of the job before it, and noise. An
    interval that takes the jobs as independent holds in half of the cases."""
    draw, jobs = np.random.default_rng(2), 600
    held = naive = 0
    for _ in range(REPETITIONS):
        noise, values = draw.normal(0.0, 1.0, size=jobs), np.empty(jobs)
        values[0] = noise[0] / 0.6
        for n in range(1, jobs):
            values[n] = 0.8 * values[n - 1] + noise[n]
        means = [float(part.mean()) for part in np.array_split(values, WINDOWS)]
        one = PairedDifference.of([(mean, 0.0) for mean in means])
        held += abs(one.difference) <= one.half_width
        middle, half = interval(values.tolist())
        naive += abs(middle) <= half
    assert 0.91 <= held / REPETITIONS <= 0.98
    assert naive / REPETITIONS < 0.6


def test_windows_are_equal_parts_of_the_jobs_and_few_jobs_have_none() -> None:
    trace = Generator(jobs=60, jobs_per_hour=60.0, durations=(600.0, 7200.0)).trace(0)
    record = run_simulation(Simulation(trace, Cluster.parse("8xv100:4"))).record
    means = window_means(record, DEFAULTS)
    jct = record.jobs.ended_s - record.jobs.submitted_s
    assert len(means["average_jct_s"]) == 6
    assert means["average_jct_s"][0] == pytest.approx(float(jct[:10].mean()))
    assert means["average_jct_s"][5] == pytest.approx(float(jct[50:].mean()))
    assert "makespan_s" not in means
    assert window_means(record, replace(DEFAULTS, measure=(0, 29))) == {}


def test_without_windows_the_result_says_why() -> None:
    rows = [{"scheduler": label, "load": None, "seed": 0, "jobs": 3, "average_jct_s": 9.0} for label in ("fifo", "las")]
    found = paired_differences(rows, ["average_jct_s"], windows=[{}, {}])
    assert not found.rows
    assert found.why_none.startswith("no differences: 3 jobs are too few for 3 windows of 10 jobs; use several seeds")
    assert paired_differences(rows[:1], ["average_jct_s"], windows=[{}]).why_none == ""
    with pytest.raises(InputError, match="'metric' is 'jct': expected one of jobs, average_jct_s"):
        paired_differences(rows, ["jct"])


def test_a_name_without_parameters_means_the_only_label_that_has_it() -> None:
    labels = ["las(by=time)", "las", "Patient(credit=10)", "fifo + quota(default=4)", "srtf(a=1)", "srtf(a=2)"]
    assert find_label(labels, "las") == "las"
    assert find_label(labels, "Patient") == "Patient(credit=10)"
    assert find_label(labels, "fifo") == "fifo + quota(default=4)"
    assert find_label(labels, None) == "las(by=time)"
    with pytest.raises(InputError, match="one of las"):
        find_label(labels, "srtf")
