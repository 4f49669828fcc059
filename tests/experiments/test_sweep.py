"""Sweeps from a file: every point, what is kept, what failed, and what is told of a wrong file before anything runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.cli.output import out
from fairlead.core.errors import FairleadError
from fairlead.experiments.sweep import Sweep, read_sweep, run_sweep
from fairlead.experiments.sweep.sweep_run import SweepRun
from fairlead.reporting.sweep_page import sweep_html, sweep_pictures

WHOLE = """\
title: doors
schedulers:
  - las
  - {preset: las, name: doored, admission: accept-up-to}
over:
  load: [20, 40]
  admission.factor: [1.0, 1.5]
seeds: 2
cluster: 4xv100:2
jobs: 10
workers: single
metrics: [average_jct_s, utilization]
"""


def read(folder: Path, text: str) -> Sweep:
    (folder / "sweep.yaml").write_text(text)
    return read_sweep(folder / "sweep.yaml")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The sweep above, run once; what it kept is copied by whoever changes it."""
    folder = tmp_path_factory.mktemp("sweep")
    return folder / "out", run_sweep(read(folder, WHOLE), folder / "out", processes=1)


def test_every_value_meets_every_other_and_whoever_has_no_such_parameter_is_there_once(finished):
    swept = finished[1]
    sweep = swept.sweep
    at = [(sweep.arms[point.arm].label, *(sweep.value(point, axis) for axis in (0, 1))) for point in sweep.points()]
    doored = [("doored", load, factor) for load in (20, 40) for factor in (1.0, 1.5)]
    assert sorted(at, key=str) == sorted([("las", 20, None), ("las", 40, None), *doored], key=str)
    assert (swept.ran, swept.kept, len(swept.results)) == (12, 0, 6)
    figures = [result.mean["average_jct_s"] for result in swept.results]
    assert len(set(figures)) > 4
    assert all(result.half_width["average_jct_s"] > 0 for result in swept.results)


def test_what_is_kept_is_not_run_again_and_what_is_new_is(finished, tmp_path):
    first = finished[1]
    folder = shutil.copytree(finished[0], tmp_path / "out")
    again = run_sweep(read(tmp_path, WHOLE), folder, processes=1)
    assert (again.ran, again.kept) == (0, 12)
    assert [result.mean for result in again.results] == [result.mean for result in first.results]
    next((folder / "cases").iterdir()).write_text("{ half a file")
    more = run_sweep(read(tmp_path, WHOLE.replace("seeds: 2", "seeds: 3").replace("doored", "other name")), folder, processes=1)
    assert (more.ran, more.kept) == (7, 11)
    assert run_sweep(read(tmp_path, WHOLE.replace("4xv100:2", "6xv100:2")), folder, processes=1).ran == 12


def test_a_kept_run_counts_by_what_is_in_the_trace_and_not_by_where_it_lies(tmp_path):
    text = "schedulers: [fifo, srtf]\nover: {placement: [consolidated, spread]}\ncluster: 2xv100:2\ntrace: jobs.csv\n"
    rows = "name,submitted_s,duration_s\n" + "".join(f"j{i},{i},{60 + i}\n" for i in range(8))
    ran = []
    for name, content in (("here", rows), ("there", rows), ("there", rows + "late,99,5\n")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "jobs.csv").write_text(content)
        _forget()
        ran.append(run_sweep(read(tmp_path / name, text), tmp_path / "out", processes=1).ran)
    assert ran == [4, 0, 4]


def _forget() -> None:
    """A file that is written anew within one process is not looked at again otherwise."""
    from fairlead.experiments.sweep import sweep_run as case

    case._trace.cache_clear()
    case._digest.cache_clear()


def test_parts_clusters_costs_and_rounds_can_be_swept(tmp_path):
    over = "{cluster: [2xv100:2, 4xv100:2], placement: [spread, {name: consolidated, wait: true}], costs.restart_s: [0, 60],"
    text = f"schedulers: [fifo]\nover: {over} rounds: [60, event-driven]}}\njobs: 6\nload: 60\nworkers: single\n"
    swept = run_sweep(read(tmp_path, text + "metrics: [average_jct_s]\n"), tmp_path / "out", processes=1)
    assert len(swept.results) == 16
    assert not any(result.failed for result in swept.results)
    assert swept.sweep.against == "costs.restart_s"
    small, large = (
        min(r.mean["average_jct_s"] for r in swept.results if swept.sweep.value(r.point, 0) == name)
        for name in ("2xv100:2", "4xv100:2")
    )
    assert large < small
    told = sweep_html(swept)
    assert "consolidated(wait=True)" in told
    assert "event-driven" in told


def test_the_report_has_a_line_for_every_setting_and_nothing_from_elsewhere(finished, tmp_path):
    swept = finished[1]
    jct, use = sweep_pictures(swept)
    assert [line.label for line in jct.lines] == ["las", "doored, admission.factor 1", "doored, admission.factor 1.5"]
    assert all(tuple(line.x) == (20.0, 40.0) and len(line.spread) == 2 for line in (*jct.lines, *use.lines))
    along = run_sweep(read(tmp_path, WHOLE + "against: admission.factor\n"), finished[0], processes=1)
    flat = next(line for line in sweep_pictures(along)[0].lines if line.label == "las, load 20")
    assert (tuple(flat.x), flat.y[0]) == ((1.0, 1.5), flat.y[1])
    told = sweep_html(swept)
    assert told.count("data:image/png;base64,") == 2
    assert "http" not in told.replace("http-equiv", "")
    assert "±" in told


def test_a_point_that_fails_is_told_and_the_others_stand(tmp_path, monkeypatch):
    run = SweepRun.run

    def fails(self, world):
        if "srtf" in self.scheduler:
            raise FairleadError("no idea")
        return run(self, world)

    monkeypatch.setattr(SweepRun, "run", fails)
    text = "schedulers: [fifo, srtf]\ncluster: 2xv100:2\njobs: 3\nworkers: single\n"
    swept = run_sweep(read(tmp_path, text), tmp_path / "out", processes=1)
    assert [result.failed for result in swept.results] == ["", "FairleadError: no idea"]
    assert "failed: FairleadError: no idea" in sweep_html(swept)
    assert len(list((tmp_path / "out").glob("cases/*.json"))) == 1


def test_jobs_without_rates_are_told_before_anything_runs(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s,kind,steps\na,0,,no-such-kind,10\n")
    with pytest.raises(FairleadError, match="field 'kind' is 'no-such-kind': expected a job type in the throughput table"):
        read(tmp_path, "schedulers: [fifo]\ntrace: jobs.csv\n")


WRONG = {
    "no schedulers": ("over: {load: [1]}\n", "sweep.yaml: field 'schedulers': expected a list of presets"),
    "a field that nobody knows": (
        "schedulers: [las]\noverr: {load: [1]}\n",
        "sweep.yaml:2: field 'overr': expected a known field",
    ),
    "an unknown preset": (
        "schedulers:\n  - las\n  - tiresia\n",
        "sweep.yaml:3: unknown preset 'tiresia'; did you mean 'tiresias'",
    ),
    "an unknown part": ("schedulers:\n  - {preset: las,\n     placement: sprea}\n", "sweep.yaml:3: unknown placement 'sprea'"),
    "the same twice": (
        "schedulers: [las,\n  las]\n",
        "sweep.yaml:2: field 'schedulers[1]' is 'las': expected a scheduler with",
    ),
    "an unknown axis": (
        "schedulers: [las]\nover:\n  laod: [1]\n",
        "sweep.yaml:3: field 'laod': expected something that can be varied (did you mean 'load'",
    ),
    "a parameter of nobody": (
        "schedulers: [las]\nover:\n  policy.bye: [1]\n",
        "sweep.yaml:3: field 'policy.bye': expected a parameter that some",
    ),
    "a value of the wrong kind": (
        "schedulers: [las]\nover:\n  policy.by:\n    - time\n    - weight\n",
        "sweep.yaml:5: field 'policy.by' is 'weight': expected 'accelerator-time' or 'time'",
    ),
    "a value out of range": (
        "schedulers: [las-accept-1.2x]\nover: {admission.factor: [1,\n  -2]}\n",
        "sweep.yaml:3: field 'admission.factor' is -2: expected a number above 0",
    ),
    "a placement of nobody": (
        "schedulers: [las]\nover: {placement: [sprea]}\n",
        "sweep.yaml:2: field 'placement' is 'sprea': expected a known placement (did you mean 'spread'?)",
    ),
    "rounds too short": (
        "schedulers: [las]\nover: {rounds: [0]}\n",
        "sweep.yaml:2: field 'rounds' is 0: expected 0.01 to 1e+09 seconds",
    ),
    "a load of nothing": (
        "schedulers: [las]\nover: {load: [2, 0]}\n",
        "sweep.yaml:2: field 'load[1]' is 0: expected jobs per hour",
    ),
    "a value twice": ("schedulers: [las]\nover: {load: [2, 2]}\n", "field 'load[1]' is 2: expected each value only once"),
    "no list": ("schedulers: [las]\nover: {load: 2}\n", "sweep.yaml:2: field 'load' is 2: expected a list"),
    "a wrong cluster": (
        "schedulers: [las]\nover: {cluster: [8xv100, many]}\n",
        "sweep.yaml:2: field 'cluster[1]' is 'many': expected GPUs×type",
    ),
    "a cost below nothing": (
        "schedulers: [las]\nover: {costs.restart_s: [-1]}\n",
        "field 'costs.restart_s[0]' is -1: expected seconds, at least 0",
    ),
    "a wrong seed": ("schedulers: [las]\nseeds: [1, x]\n", "sweep.yaml:2: field 'seeds[1]' is 'x': expected a whole number"),
    "a metric of nobody": (
        "schedulers: [las]\nmetrics: [average_jct]\n",
        "sweep.yaml:2: field 'metrics[0]' is 'average_jct': expected a metric (did you mean 'average_jct_s'",
    ),
    "no such trace": ("schedulers: [las]\ntrace: none.csv\n", "none.csv: expected a trace that can be read"),
    "jobs and a trace": (
        "schedulers: [las]\njobs: 3\ntrace: none.csv\n",
        "sweep.yaml:2: field 'jobs' is 3: expected no jobs together with a trace",
    ),
    "along nothing": (
        "schedulers: [las]\nover: {load: [1]}\nagainst: loads\n",
        "sweep.yaml:3: field 'against' is 'loads': expected one of the axes",
    ),
    "too many seeds": ("schedulers: [las]\nseeds: 1000000000000\n", "is 1000000000000: expected at most 100,000 seeds"),
    "a seed too large": (f"schedulers: [las]\nseeds: [{'9' * 32}]\n", "expected at least one seed, each once, none above"),
    "too many runs": (
        "schedulers: [las]\nover:\n"
        + "".join(f"  {name}: {list(range(1, 61))}\n" for name in ("load", "rounds", "costs.restart_s")),
        "expected at most 100,000 runs, and these are 216,000",
    ),
    "a cluster without rates": (
        "schedulers: [las]\nover: {cluster: [8xv100,\n  4xfoo:2]}\n",
        "sweep.yaml:3: field 'cluster[1]' is '4xfoo:2': expected types that have rates (known: a100",
    ),
    "a measure of nobody": (
        "schedulers: [las]\nover: {jobs: [100, 20]}\nmeasure: '20:30'\n",
        "sweep.yaml:3: field 'measure' is '20:30': expected a range within the 20 jobs of the trace",
    ),
    "a measure backwards": ("schedulers: [las]\nmeasure: '9:3'\n", "field 'measure' is '9:3': expected first:last"),
    "a measure of one": ("schedulers: [las]\nmeasure: '5'\n", "sweep.yaml:2: field 'measure' is '5': expected first:last"),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_file_is_told_before_anything_runs(tmp_path, text, expected):
    with pytest.raises(FairleadError) as told:
        read(tmp_path, text)
    assert expected in str(told.value).replace(f"{tmp_path}/", "")
    assert "\n" not in str(told.value)


def test_from_the_command_line_it_is_a_table_a_report_and_one_object(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(WHOLE.replace("average_jct_s, ", ""))
    shutil.copytree(finished[0], tmp_path / "out" / "mine")
    next((tmp_path / "out" / "mine" / "cases").iterdir()).unlink()
    first = CliRunner().invoke(app, ["compare", "--sweep", "mine.yaml", "--processes", "1", "--json"])
    told = json.loads(first.stdout)
    assert (told["ran"], told["reused"], len(told["results"])) == (1, 11, 6)
    assert (tmp_path / "out" / "mine" / "report.html").is_file()
    again = CliRunner().invoke(app, ["compare", "--sweep", "mine.yaml", "--out", "out/mine"])
    assert again.exit_code == 0
    assert "doored" in again.stdout
    assert "runs: 0, reused: 12" in again.stderr


def test_other_options_beside_a_sweep_are_refused(tmp_path):
    both = CliRunner().invoke(app, ["compare", "--sweep", "mine.yaml", "--jobs", "3"]).exception
    assert str(both) == "--jobs: expected this setting in mine.yaml, not on the command line"


def test_in_a_narrow_terminal_names_stay_and_figures_go(finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(out, "_width", 60)
    (tmp_path / "mine.yaml").write_text(WHOLE)
    done = CliRunner().invoke(app, ["compare", "--sweep", "mine.yaml", "--out", str(finished[0])])
    assert "scheduler load (jobs/h) admission.factor" in " ".join(done.stdout.split())
    assert "…" not in done.stdout
    assert "no room here for avg JCT, utilization" in " ".join(done.stdout.split())
