"""`--applications`: what the jobs of a trace train, as it was measured."""

from __future__ import annotations

import pytest
from command import answer, fairlead

from toy_applications import write_applications

WORKLOAD = "name,time,application,num_replicas,batch_size\n" + "\n".join(f"toy-{n},{9 * n},toy,2,256" for n in range(8))


def test_a_workload_of_pollux_runs_with_its_applications(tmp_path):
    folder = write_applications(tmp_path / "apps")
    (tmp_path / "work.csv").write_text(WORKLOAD)
    given = ("--trace", tmp_path / "work.csv", "--applications", folder, "--cluster", "8xv100:4", "--round", "20")
    elastic = answer("simulate", "--preset", "pollux", *given)
    rigid = answer("simulate", "--policy", "fifo", *given)
    assert elastic["finished"] == rigid["finished"] == 8
    assert elastic["average_jct_s"] < rigid["average_jct_s"]


def test_applications_need_a_trace(tmp_path):
    done = fairlead("simulate", "--policy", "fifo", "--applications", tmp_path)
    assert done.returncode != 0
    assert "--applications" in done.stderr
    assert "--trace FILE together with this option" in done.stderr


@pytest.mark.parametrize(("option", "value"), [("jobs", 5), ("workers", "single"), ("users", 2), ("load", 9)])
def test_options_of_generated_jobs_are_refused_with_a_trace(tmp_path, option, value):
    (tmp_path / "work.csv").write_text(WORKLOAD)
    done = fairlead("simulate", "--policy", "fifo", "--trace", tmp_path / "work.csv", f"--{option}", value)
    assert done.returncode == 2
    assert f"--{option} {value!r}: expected no --trace together with this option" in done.stderr
