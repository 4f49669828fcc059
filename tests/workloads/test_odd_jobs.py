"""Jobs and tables that nobody means: each is told in a line, before anything runs, or does no harm."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fairlead.config.yaml_source import read_yaml
from fairlead.core.cluster import Cluster
from fairlead.core.errors import FairleadError, InputError
from fairlead.core.job import Job, batch_size_of, kind_of, model_of
from fairlead.experiments.inputs import TraceFile, table_for
from fairlead.files import is_stream
from fairlead.journal.jsonl import read_events
from fairlead.policies.shockwave.planning.window import make_window
from fairlead.prediction.predictor import load_predictor
from fairlead.profiling.results import ResultsFile
from fairlead.workloads.dynamics import Regimes, RunConditions
from fairlead.workloads.formats import read_trace_file
from fairlead.workloads.formats.gavel_traces import with_regimes
from fairlead.workloads.generate import Generator
from fairlead.workloads.table_files import read_throughputs
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace
from fairlead_papers import GavelInputs

NET = kind_of("Net", 8)


@pytest.mark.parametrize("size", ["0", "064", "9" * 5000, "٣"])
def test_a_batch_size_that_is_none_is_part_of_the_models_name(size: str):
    kind = f"Net (batch size {size})"
    assert (batch_size_of(kind), model_of(kind)) == (None, kind)


def test_who_has_no_batch_size_has_no_regimes(tmp_path: Path):
    (tmp_path / "jobs.csv").write_text("submitted_s,steps,kind,regimes\n0,10,Net (batch size 0),1@0.5|2@0.5\n")
    with pytest.raises(InputError, match=r"jobs\.csv:2: field 'regimes' is .*kind has no batch size"):
        read_trace_file(tmp_path / "jobs.csv")


def test_shares_beyond_all_steps_are_told(tmp_path: Path):
    (tmp_path / "jobs.csv").write_text(f"submitted_s,steps,kind,regimes\n0,10,{NET},8@1e300|16@1e300\n")
    with pytest.raises(InputError, match=r"jobs\.csv:2: field 'regimes' is .*at most 1e\+15 steps"):
        read_trace_file(tmp_path / "jobs.csv")


def test_of_many_regimes_the_one_at_hand_is_found():
    parts = tuple((8 + 8 * (place % 2), 0.25) for place in range(4))
    regimes = Regimes.of(Job("net", 0.0, 100.0, NET), parts)
    found = [
        regimes.speed(RunConditions(steps, "v100", 1, (1,), 0, lambda _: 1.0, 1.0)) for steps in (0, 24.9, 25, 74.9, 75, 100)
    ]
    assert [speed.batch_size for speed in found] == [8, 8, 16, 8, 16, 16]


def test_a_job_is_in_a_file_of_regimes_once(tmp_path: Path):
    path = tmp_path / "regimes.json"
    one = {"job": 0, "samples_per_epoch": 80, "regimes": [{"batch_size": 8, "epochs": 1}]}
    path.write_text(json.dumps([one, one]))
    with pytest.raises(InputError, match=r"regimes\.json:2: field 'job' is 0: expected each job only once; entry 1 has it too"):
        with_regimes(Trace.of([Job("job-0", 0.0, 10.0, NET)]), path)


@pytest.mark.parametrize(
    "read",
    [
        read_throughputs,
        lambda path: with_regimes(Trace.of([]), path),
        load_predictor,
        lambda path: ResultsFile(path, {}),
        lambda path: GavelInputs(path).fingerprint,
        lambda path: TraceFile(path).read(),
        read_yaml,
        lambda path: list(read_events(path)),
    ],
)
def test_a_pipe_is_not_waited_for_nor_a_device_read_to_its_end(tmp_path: Path, read: Callable[[Path], object]):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(FairleadError, match="regular file"):
            read(path)


def test_what_ends_is_a_file_or_a_folder_or_is_not_there(tmp_path: Path):
    (tmp_path / "file").write_text("")
    (tmp_path / "nowhere").symlink_to(tmp_path / "nothing")
    (tmp_path / "link").symlink_to("/dev/zero")
    assert not any(is_stream(tmp_path / name) for name in ("", "file", "nowhere", "nothing", "file/below", "\0"))
    assert is_stream(tmp_path / "link")
    assert is_stream("/dev/null")


def test_a_rate_of_which_no_event_log_can_tell_is_told(tmp_path: Path):
    path, header = tmp_path / "table.csv", "kind,workers,type,placement,partner_kind,partner_workers,steps_per_s,source\n"
    for rate in ("1e13", "1e308", "inf", "nan"):
        path.write_text(f"{header}{NET},1,v100,consolidated,,,{rate},made up\n")
        with pytest.raises(InputError, match=r"table\.csv:2: field 'steps_per_s' is .*from 0 to 1e\+12, where not 0"):
            read_throughputs(path)
    path.write_text(f"{header}{NET},1,v100,consolidated,,,1e12,made up\n")
    assert read_throughputs(path).alone.max() == 1e12


def length_of(job: Job, rate: float = 1.0, **dynamics: Regimes) -> ThroughputTable:
    alone = np.array([[1.0], [rate]])
    table = ThroughputTable(("v100",), (("", 1), (NET, 1)), alone, alone, np.zeros((2, 2, 1)))
    return table_for(Trace.of([job], dynamics=dynamics), Cluster.parse("1xv100:1"), table)


def test_work_for_longer_than_clocks_can_tell_is_told():
    told = r"job 'a': field 'steps' is 1000000000000\.0: expected work for at most 1e\+11 seconds on its fastest"
    with pytest.raises(InputError, match=told):
        length_of(Job("a", 0.0, 1e12))
    with pytest.raises(InputError, match=told):
        length_of(Job("a", 0.0, 1e12, NET))
    overrun = Job("a", 0.0, 1e3, NET)
    with pytest.raises(InputError, match=r"field 'steps' is 1000\.0"):
        length_of(overrun, 1e-3, a=Regimes.of(overrun, [(8, 1e6)]))


def test_long_work_on_fast_types_or_with_a_limit_or_nowhere_to_run_is_in_order():
    length_of(Job("a", 0.0, 1e12, NET), rate=100.0)
    length_of(Job("a", 0.0, 1e12, time_limit_s=3600.0))
    length_of(Job("a", 0.0, 1e12, NET), rate=0.0)  # refused at the door, with a reason


def test_more_rounds_than_whole_numbers_count_are_as_many_as_the_window_has():
    one = np.array([1.0, 1.0])
    made = make_window(
        np.zeros((2, 4)), np.array([1e24, 150.0]), np.array([1, 1]), one, 2, round_s=100.0, makespan=1.0, scale_s=1.0
    )
    assert made.max_rounds.tolist() == [3, 2]


def test_jobs_that_come_after_the_longest_time_or_are_too_many_are_told():
    for rate in (5e-324, 1e-9):
        with pytest.raises(InputError, match=r"field 'jobs_per_hour' is .*within 1e\+11 seconds"):
            Generator(jobs=3, jobs_per_hour=rate).trace(0)
    with pytest.raises(InputError, match="field 'jobs' is 1000000000: expected a whole number from 1 to 10,000,000"):
        Generator(jobs=10**9)
