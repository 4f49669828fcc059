"""The public Python API as a user meets it: paths, data frames and objects in, tables and reports out."""

from __future__ import annotations

import doctest
import subprocess
import sys
from dataclasses import dataclass
from importlib import import_module

import pyarrow
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import fairlead
from fairlead.cli.main import app
from fairlead.core.errors import FairleadError
from fairlead.core.events import RoundPlanned
from fairlead.plugin import Memo, Selection, Snapshot, in_order

CLUSTER = "8xv100:4"
COLUMNS = {"name": ["a", "b", "c"], "submitted_s": [0.0, 10.0, 20.0], "steps": [600.0, 300.0, 900.0], "workers": [4, 8, 2]}


@dataclass(frozen=True)
class LastComeFirst:
    """Rank jobs by submission, latest first."""

    sign: float = -1.0

    def select(self, view: Snapshot, memo: Memo) -> tuple[Selection, Memo]:
        return in_order(view, self.sign * view.jobs.submitted_s), memo


@pytest.fixture
def trace() -> fairlead.Trace:
    return fairlead.Generator(jobs=30, jobs_per_hour=20.0, workers="multiple", users=2).trace(seed=3)


@pytest.mark.parametrize("name", ["fairlead.api.functions", "fairlead.api.scheduler", "fairlead.api.connection"])
def test_examples_in_docstrings_run_as_written(name):
    failed, tried = doctest.testmod(import_module(name))
    assert not failed
    assert tried or name.endswith("connection")


def test_dir_shows_the_api_and_nothing_else():
    assert {"simulate", "compare", "resimulate", "connect", "Scheduler", "Cluster", "Job", "Trace"} <= set(dir(fairlead))
    assert set(dir(fairlead)) == set(fairlead.__all__)
    for name in fairlead.__all__:
        assert getattr(fairlead, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        _ = fairlead.simulat


def test_import_loads_nothing_heavy():
    heavy = "numpy", "pyarrow", "highspy", "matplotlib", "pydantic", "fastapi", "grpc"
    code = f"import fairlead, sys; sys.exit(','.join(m for m in {heavy!r} if m in sys.modules) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_report_stays_the_function_after_the_reporting_package_is_imported():
    import_module("fairlead.reporting.html")
    import_module("fairlead.experiments.metrics")
    assert callable(fairlead.report)


def test_a_trace_may_be_a_file_a_table_or_jobs(tmp_path):
    table = pyarrow.table(COLUMNS)
    pyarrow.parquet.write_table(table, tmp_path / "jobs.parquet")
    jobs = [fairlead.Job(n, s, w, workers=g) for n, s, w, g in zip(*COLUMNS.values(), strict=True)]
    path = tmp_path / "jobs.parquet"
    given = (path, str(path), table, jobs, fairlead.read_trace(path))
    summaries = [fairlead.simulate(one, CLUSTER, "fifo").jobs["ended_s"].to_pylist() for one in given]
    assert all(one == summaries[0] for one in summaries)


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_data_frames_go_in_and_come_out(library):
    frames = pytest.importorskip(library)
    run = fairlead.simulate(frames.DataFrame(COLUMNS), CLUSTER, "fifo")
    frame = run.to_pandas() if library == "pandas" else run.to_polars()
    assert list(frame["name"]) == ["a", "b", "c"]
    result = fairlead.compare(frames.DataFrame(COLUMNS), CLUSTER, ["fifo", "srtf"], processes=1)
    assert len(result.to_pandas() if library == "pandas" else result.to_polars()) == 2


def test_what_is_no_trace_is_refused():
    with pytest.raises(FairleadError, match="a path, a data frame, a Trace, a Generator or jobs"):
        fairlead.simulate([1, 2], CLUSTER)


def test_a_run_has_tables_events_and_a_report(trace, tmp_path):
    run = fairlead.simulate(trace, CLUSTER, "las", round_s=300)
    assert run.summary["finished"] == 30
    assert run.jobs.num_rows == 30
    assert run.jobs["phase"].to_pylist() == ["finished"] * 30
    rounds = run.rounds.to_pydict()
    assert len(rounds["time_s"]) == sum(isinstance(event, RoundPlanned) for event in run.events)
    assert max(rounds["gpus_in_use"]) == 8
    assert sum(rounds["launched"]) == 30 + run.summary["restarts"]
    assert all(running >= 0 and waiting >= 0 for running, waiting in zip(rounds["running"], rounds["waiting"], strict=True))
    assert run.report(tmp_path / "x.html").read_text().startswith("<!doctype html>")
    written = run.to_parquet(tmp_path / "tables")
    assert [path.name for path in written] == ["jobs.parquet", "rounds.parquet"]
    assert pyarrow.parquet.read_table(written[0]).equals(run.jobs)
    assert "average_jct_s" in run._repr_html_()
    assert repr(run) == "Run('las' on 'generated-3', 30 jobs)"


def test_events_need_not_be_kept(trace):
    run = fairlead.simulate(trace, CLUSTER, "las", keep_events=False)
    assert run.events == ()
    assert run.summary["finished"] == 30


def test_round_length_of_a_scheduler_is_kept_unless_given(trace):
    assert fairlead.Scheduler("gavel").config.round_s == 360
    assert fairlead.Scheduler("las", round_s=60).config.round_s == 60
    rounds = fairlead.simulate(trace, CLUSTER, fairlead.Scheduler("las", round_s=60)).rounds["time_s"].to_pylist()
    assert all(second % 60 == 0 for second in rounds)


def test_a_scheduler_takes_names_parameters_objects_and_files(tmp_path):
    assert fairlead.Scheduler("gavel", space_sharing=True).config.policy.parameters == {"space_sharing": True}
    composed = fairlead.Scheduler("las", placement="spread", admission="accept-up-to:factor=1.5")
    assert composed.label.startswith("las + accept-up-to")
    (tmp_path / "mine.yaml").write_text(fairlead.Scheduler("tiresias", thresholds=[100.0, 200.0]).to_yaml())
    assert fairlead.Scheduler.from_file(tmp_path / "mine.yaml").config.policy.parameters["thresholds"] == [100.0, 200.0]
    with pytest.raises(FairleadError, match=r"did you mean|near|known"):
        fairlead.Scheduler("laz")
    with pytest.raises(FairleadError, match="space_sharin"):
        fairlead.Scheduler("gavel", space_sharin=True)


def test_a_policy_of_ones_own_is_simulated_and_compared(trace):
    backwards = fairlead.simulate(trace, CLUSTER, LastComeFirst())
    forwards = fairlead.simulate(trace, CLUSTER, LastComeFirst(sign=1.0))
    assert backwards.record.scheduler.startswith("LastComeFirst")
    assert backwards.jobs["ended_s"].to_pylist() != forwards.jobs["ended_s"].to_pylist()
    result = fairlead.compare(trace, CLUSTER, ["fifo", LastComeFirst()])
    assert result.schedulers == ["fifo", "LastComeFirst"]


def test_comparisons_are_paired_by_seed_and_load(tmp_path):
    generator = fairlead.Generator(jobs=12, jobs_per_hour=20.0)
    result = fairlead.compare(generator, CLUSTER, ["fifo", "las"], seeds=range(3), loads=[10.0, 20.0], processes=1)
    assert result.runs.num_rows == 12
    paired = result.paired("las", "fifo")
    assert paired["pairs"] == 6
    rows = {(row["scheduler"], row["load"], row["seed"]): row["average_jct_s"] for row in result.rows}
    differences = [rows["las", load, seed] - rows["fifo", load, seed] for load in (10.0, 20.0) for seed in range(3)]
    assert paired["differences"] == pytest.approx(differences)
    assert paired["difference"] == pytest.approx(sum(differences) / 6)
    assert [row["seeds"] for row in result.summary] == [3] * 4
    assert result.report(tmp_path / "x.html").is_file()
    assert {path.name for path in result.to_parquet(tmp_path)} >= {
        "runs.parquet",
        "jobs-las-load-10-seed-0.parquet",
        "jobs-las-load-20-seed-2.parquet",
    }
    assert "±" in result._repr_html_()
    with pytest.raises(FairleadError, match="one of fifo, las"):
        result.paired("las", "srtf")
    with pytest.raises(FairleadError, match="average_jct_s"):
        result.paired("las", "fifo", "jct")


def test_processes_change_nothing(trace):
    alone = fairlead.compare(trace, CLUSTER, ["fifo", "srtf"], processes=1)
    several = fairlead.compare(trace, CLUSTER, ["fifo", "srtf"], processes=2)
    timing = ("decide_s", "wall_s", "peak_rss_mb")
    strip = [[{k: v for k, v in row.items() if k not in timing} for row in result.rows] for result in (alone, several)]
    assert strip[0] == strip[1]


def test_a_recorded_run_is_simulated_again(trace, tmp_path):
    from fairlead.experiments.simulate import Simulation, run_simulation
    from fairlead.journal.recovery import open_journal

    journal = open_journal(str(tmp_path / "run.jsonl"))
    run_simulation(Simulation(trace, fairlead.Cluster.parse(CLUSTER)), journal=journal)
    result = fairlead.resimulate(tmp_path / "run.jsonl", ["srtf", fairlead.Scheduler("las")], processes=1)
    assert result.schedulers == ["recorded: fifo", "control: the same scheduler, simulated", "srtf", "las"]
    assert result.control_errors["average_jct_s"] == pytest.approx(0.0, abs=1e-9)
    page = result.report(tmp_path / "again.html").read_text(encoding="utf-8")
    assert "error of the control: avg JCT +0.0 %" in page


def test_connect_says_when_no_cluster_is_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    with pytest.raises(FairleadError, match="fairlead up"):
        fairlead.connect()


def test_a_script_without_a_main_guard_compares_in_several_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import fairlead\n"
        "jobs = [fairlead.Job(f'job-{n}', submitted_s=60.0 * n, steps=600.0) for n in range(8)]\n"
        "print(len(fairlead.compare(jobs, '4xv100:4', ['fifo', 'las'], processes=2).runs))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_commands_write_the_same_tables(tmp_path):
    simulated = ["simulate", "--policy", "las", "--jobs", "8", "--out", str(tmp_path / "one"), "--json"]
    compared = [
        "compare",
        "--policies",
        "fifo,las",
        "--jobs",
        "8",
        "--out",
        str(tmp_path / "two"),
        "--json",
        "--processes",
        "1",
    ]
    for words in (simulated, compared):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
    assert pyarrow.parquet.read_table(tmp_path / "one" / "jobs.parquet").num_rows == 8
    assert pyarrow.parquet.read_table(tmp_path / "one" / "rounds.parquet").num_rows > 0
    assert pyarrow.parquet.read_table(tmp_path / "two" / "runs.parquet").num_rows == 2
