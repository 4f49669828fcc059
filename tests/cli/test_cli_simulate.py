"""`fairlead simulate` from the outside: the published numbers, the keys of its answer, its event log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from command import answer, environment, fairlead
from typer.testing import CliRunner

import fairlead as fairlead_api
from fairlead import __version__
from fairlead.cli.main import app
from fairlead.engine.apply import replay_events
from fairlead.experiments.run_record import record_from_journal
from fairlead.journal.jsonl import read_events

KEYS = {
    "jobs",
    "finished",
    "average_jct_s",
    "median_jct_s",
    "p99_jct_s",
    "makespan_s",
    "average_responsiveness_s",
    "average_queueing_s",
    "utilization",
    "average_ftf",
    "worst_ftf",
    "unfair_fraction",
    "preemptions",
    "restarts",
    "rounds",
    "decide_s",
    "wall_s",
    "peak_rss_mb",
}
TIRESIAS = {
    "fifo": ("fifo", 1556.5),
    "srtf": ("shortest", 519.9),
    "tiresias:thresholds=[3250,7200]": ("dlas-gpu", 715.3),
}


@pytest.mark.parametrize("policy", TIRESIAS)
def test_tiresias_sixty_jobs_come_out_as_its_own_simulator_says(policy, public_data, expected_results, tmp_path):
    schedule, average = TIRESIAS[policy]
    log = tmp_path / "events.jsonl"
    trace = public_data / "tiresias" / "60_job.csv"
    how = ("--cluster", "8xv100:4", "--event-driven", "--restart-cost", "0", "--events", log)
    found = answer("simulate", "--policy", policy, "--trace", trace, "--format", "tiresias", *how)
    assert found["finished"] == 60
    assert found["average_jct_s"] == pytest.approx(average, rel=0.01)
    (published,) = (
        entry
        for entry in json.loads((expected_results / "tiresias" / "60_job.json").read_text())
        if (entry["config"], entry["schedule"]) == ("60_job_n2g4_count", schedule)
    )
    record = record_from_journal(log)
    jct = dict(zip(record.jobs.names, (record.jobs.ended_s - record.jobs.submitted_s).tolist()))
    assert set(jct) == set(published["jct"])
    far = {
        name: (jct[name], theirs)
        for name, theirs in published["jct"].items()
        if abs(jct[name] - theirs) > max(2.0, 0.01 * theirs)
    }
    assert not far
    assert found["makespan_s"] == pytest.approx(published["makespan"], rel=0.01)


def test_the_answer_in_json_has_everything_and_nothing_else_is_printed():
    done = fairlead("simulate", "--policy", "las", "--jobs", "20", "--restart-cost", "20", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert set(found) >= KEYS
    assert (found["scheduler"], found["jobs"], found["finished"]) == ("las", 20, 20)
    assert all(isinstance(found[key], (int, float)) for key in KEYS)


def test_for_people_there_is_a_table_and_notes_go_to_the_other_side(tmp_path):
    log = tmp_path / "x.jsonl"
    done = fairlead("simulate", "--policy", "fifo", "--jobs", "5", "--events", log)
    assert done.returncode == 0
    assert "avg JCT" in done.stdout or "JCT" in done.stdout
    assert "events:" in done.stderr.replace("\n", "")
    assert "\x1b" not in done.stdout


def test_the_event_log_is_the_same_twice_and_whether_quiet_rounds_are_skipped(tmp_path):
    logs = []
    for index, more in enumerate([(), (), ("--every-round",)]):
        log = tmp_path / f"{index}.jsonl"
        how = ("--policy", "las", "--jobs", "30", "--load", "20", "--mtbf", "200000", "--restart-cost", "30", "--seed", "7")
        answer("simulate", *how, "--events", log, *more)
        logs.append(log.read_bytes())
    assert logs[0] == logs[1]
    assert logs[0] == logs[2]
    replayed = replay_events(read_events(tmp_path / "0.jsonl"))
    assert not replayed.busy


def test_a_scheduler_file_stands_in_place_of_single_options(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\na,0,1000\nb,0,10\nc,1,10\n")
    (tmp_path / "mine.yaml").write_text("name: mine\npolicy: {name: srtf}\nrounds: event-driven\nadmission: accept-all\n")
    (tmp_path / "machine.yaml").write_text("nodes: [{type: v100, accelerators: 1}]\n")
    found = answer("simulate", "--config", "mine.yaml", "--trace", "jobs.csv", "--cluster", "machine.yaml", cwd=tmp_path)
    assert found["scheduler"] == "mine"
    assert found["average_jct_s"] == pytest.approx((1020 + 10 + 19) / 3)


def test_options_go_before_what_the_file_says(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\na,1,10\n")
    (tmp_path / "mine.yaml").write_text("policy: fifo\nrounds: event-driven\n")
    how = ("simulate", "--config", "mine.yaml", "--trace", "jobs.csv", "--cluster", "1xv100:1")
    assert answer(*how, cwd=tmp_path)["makespan_s"] == 10.0
    assert answer(*how, "--round", "100", cwd=tmp_path)["makespan_s"] == 109.0


def test_measuring_some_jobs_counts_those_and_stops_after_them():
    found = answer("simulate", "--policy", "fifo", "--jobs", "60", "--load", "0.1", "--measure", "5:10")
    assert found["jobs"] == found["finished"] == 5
    assert found["rounds"] * 300 < 30 * 36_000, "sixty jobs, one in ten hours: it went on to the last of them"


def test_a_report_and_plots_are_written_beside_the_answer(tmp_path):
    how = ("--report", tmp_path / "out.html", "--png", tmp_path / "plots")
    done = fairlead("simulate", "--policy", "fifo", "--jobs", "5", *how, "--json")
    assert done.returncode == 0
    json.loads(done.stdout)
    page = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html>")
    assert any(path.suffix == ".png" for path in (tmp_path / "plots").iterdir())


def test_outages_and_costs_on_the_command_line_take_effect(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\na,0,100\n")
    how = (
        "simulate",
        "--policy",
        "fifo",
        "--trace",
        "jobs.csv",
        "--cluster",
        "1xv100:1",
        "--event-driven",
        "--launch-cost",
        "5",
    )
    more = ("--restart-cost", "7", "--checkpoint-cost", "1", "--checkpoint-every", "9", "--outage", "0:50:60")
    # 45 s after loading: four times nine steps are saved. From 60 on 7 s of loading, then 64 steps at nine in ten seconds.
    assert answer(*how, *more, cwd=tmp_path)["makespan_s"] == pytest.approx(60 + 7 + 64 / 0.9)


def test_bad_lines_can_be_left_out_and_are_told(tmp_path):
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s\na,0,10\nb,x,10\nc,5,-1\nd,6,10\n")
    how = ("simulate", "--policy", "fifo", "--trace", "jobs.csv", "--cluster", "1xv100:1")
    found = answer(*how, "--skip-bad", cwd=tmp_path)
    assert (found["jobs"], found["skipped_lines"]) == (2, 2)
    told = fairlead(*how, "--skip-bad", cwd=tmp_path).stderr
    assert "skipped in jobs" in told
    assert "jobs.csv:3: field 'submitted_s' is 'x'" in told
    assert "jobs.csv:4: field " in told


def test_the_console_script_is_the_same_command():
    script = Path(sys.executable).parent / "fairlead"
    if not script.exists():
        pytest.skip("the package is not installed here; only its source is")
    done = subprocess.run([script, "--version"], env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == f"fairlead {__version__}\n"


@pytest.mark.parametrize("arguments", ["policies all", "policies --json"])
def test_a_reader_that_goes_away_early_is_no_error(arguments):
    """As `fairlead … | head -1`: standard output is closed before all is written."""
    command = [sys.executable, "-m", "fairlead.cli.main", *arguments.split()]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment(), text=True, timeout=300, check=False)
    os.close(write)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_help_is_there_for_every_command():
    told = fairlead("--help").stdout
    for command in ("simulate", "compare", "trace", "report", "policies"):
        assert command in told
    assert "..." not in told.partition("Commands:")[2], "the line of a command is cut"


@pytest.mark.parametrize(
    "group", ["trace", "presets", "scheduler", "token", "predict", "profile", "inference", "reproduce", "rates"]
)
def test_the_lines_of_a_groups_commands_are_whole(group: str) -> None:
    told = CliRunner().invoke(app, [group, "--help"], terminal_width=80).stdout
    commands = told.partition("Commands:")[2]
    assert commands.strip()
    assert "..." not in commands


@pytest.mark.parametrize("command", ["info", "why", "when", "logs", "cancel"])
def test_a_job_is_called_so_in_the_help(command: str) -> None:
    assert "JOB" in CliRunner().invoke(app, [command, "--help"]).stdout.splitlines()[0]


def test_policies_are_listed_with_a_line_and_their_paper():
    found = answer("policies")["parts"]
    names = {part["name"] for part in found}
    assert names >= {"fifo", "fifo-priority", "sjf", "srtf", "las", "tiresias", "gittins", "largest-first"}
    assert all(part["summary"] and part["kind"] == "policy" for part in found)
    (las,) = (part for part in found if part["name"] == "las")
    assert las["parameters"] == {"by": "accelerator-time", "backfill": True}
    assert "NSDI" in las["paper"]


def test_admissions_in_a_chain_and_an_end_by_loss_on_the_command_line(tmp_path: Path) -> None:
    plain, curves = tmp_path / "plain.csv", tmp_path / "curves.csv"
    fairlead("trace", "generate", "--jobs", 30, "--users", 3, "-o", plain)
    assert fairlead("trace", "transform", plain, "--loss-curves", "1@0.4", "-o", curves).returncode == 0
    common = ("simulate", "--policy", "las", "--trace", curves, "--cluster", "8xv100:4")
    through, early = answer(*common), answer(*common, "--termination", "by-loss")
    assert early["average_jct_s"] < 0.6 * through["average_jct_s"]
    held = answer(*common, "--admission", "user-job-quota:limits={user-00: 1}:default=2,accept-up-to:factor=1.2")
    assert held["average_responsiveness_s"] > through["average_responsiveness_s"]
    refused = fairlead(*common, "--admission", "user-job-quota:default=0")
    assert refused.returncode == 2
    assert "admission user-job-quota: field 'default' is 0: expected a whole number from 1 to 1,000,000,000" in refused.stderr
    wrong = fairlead("trace", "transform", plain, "--loss-curves", "x", "-o", curves)
    assert "expected share of jobs@share of steps" in wrong.stderr


def test_who_still_waits_when_nothing_can_happen_any_more_is_told_for_what(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("name,submitted_s,duration_s,workers\nwide,0,60,8\nnarrow,10,60,1\n")
    how = ("simulate", "--policy", "fifo", "--trace", trace, "--cluster", "8xv100:4", "--outage", "0:0:")
    behind = "policy: Waiting behind the head of the queue, job wide, which needs 8 GPUs"
    waits = [
        {"name": "wide", "reason": "placement: Waiting for nodes: needs 8 GPUs; 4 eligible GPUs are up; position 1 of 2"},
        {
            "name": "narrow",
            "reason": f"{behind}; only 4 eligible GPUs are up, so no job behind it starts until more are up; position 2 of 2",
        },
    ]
    assert answer(*how)["waiting_jobs"] == waits
    assert "still waiting: narrow: Waiting behind the head" in fairlead(*how).stderr
    assert "waiting_jobs" not in answer(*how[:-2])


def test_who_is_refused_is_told_why_in_a_sentence_and_in_json_also_by_which_stage(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("name,submitted_s,duration_s,workers\nhuge,0,60,9\n")
    how = ("simulate", "--policy", "fifo", "--trace", tmp_path / "jobs.csv", "--cluster", "8xv100:4")
    assert "refused: huge: Too large for this cluster: needs 9 GPUs, and there are at most 8\n" in fairlead(*how).stderr
    assert answer(*how)["refused_jobs"] == [
        {"name": "huge", "reason": "feasibility: Too large for this cluster: needs 9 GPUs, and there are at most 8"}
    ]


def test_that_starts_longer_than_rounds_are_left_alone_is_told(tmp_path: Path) -> None:
    trace = tmp_path / "two.csv"
    trace.write_text("submitted_s,duration_s\n0,60\n1,60\n")
    asked = ("--trace", trace, "--cluster", "1xv100:1", "--restart-cost", 11)
    alone = "a start may take 11 s: a starting job is not preempted before its first step, for at most 120 s (first_step_s)"
    short = fairlead("simulate", "--policy", "las", "--round", 7, *asked)
    assert f"rounds of 7 s, and {alone}" in short.stderr, short.stderr
    several = fairlead("compare", "--policies", "las,fifo", "--event-driven", *asked)
    assert several.stderr.count(f"decisions at every event, and {alone}") == 1, several.stderr
    assert "left alone" not in fairlead("simulate", "--policy", "las", "--round", 12, *asked).stderr


def test_generated_jobs_have_the_same_users_on_the_command_line_and_in_python() -> None:
    common = ("simulate", "--policy", "gandiva-fair", "--jobs", 30, "--cluster", "8xv100:4,8xk80:4", "--round", 3600)
    trace = fairlead_api.Generator(jobs=30, jobs_per_hour=6.0, workers="multiple")
    in_python = fairlead_api.simulate(trace, "8xv100:4,8xk80:4", "gandiva-fair", round_s=3600.0).summary
    assert answer(*common)["average_jct_s"] == pytest.approx(in_python["average_jct_s"])
    alone = fairlead_api.simulate(replace(trace, users=0), "8xv100:4,8xk80:4", "gandiva-fair", round_s=3600.0).summary
    assert alone["average_jct_s"] != pytest.approx(in_python["average_jct_s"])
    assert answer(*common, "--users", 0)["average_jct_s"] == pytest.approx(alone["average_jct_s"])


def test_a_generated_trace_has_as_many_users_as_the_python_default(tmp_path: Path) -> None:
    assert fairlead("trace", "generate", "--jobs", 400, "-o", tmp_path / "jobs.csv").returncode == 0
    found = {job.user for job in fairlead_api.read_trace(tmp_path / "jobs.csv").jobs}
    assert found == {f"user-{n:02d}" for n in range(12)} == {job.user for job in fairlead_api.Generator(jobs=400).trace(0).jobs}
