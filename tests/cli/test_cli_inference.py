"""`fairlead inference`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.workload_files import read_request_rates
from fairlead.core.errors import FairleadError

SESSIONS = str(Path(__file__).resolve().parents[2] / "examples" / "sessions.yaml")


def said(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["inference", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def refused(*arguments: str) -> str:
    error = CliRunner().invoke(app, ["inference", *arguments]).exception
    assert isinstance(error, FairleadError)
    return str(error)


def test_sessions_are_served_and_told_of():
    told = json.loads(said("simulate", SESSIONS, "--cluster", "8xv100:4,8xp100:4", "--duration", "5", "--json"))
    assert told["attainment"] > 0.99
    assert told["unserved"] == {}
    assert {one["session"] for one in told["results"]} == set(told["routing"])
    assert sum(one["requests"] for one in told["results"]) == pytest.approx(5 * 3710, rel=0.05)
    assert all(0 < one["busy"] <= 1.05 for one in told["accelerators"])
    assert "photos" in said("simulate", SESSIONS, "--cluster", "16xv100:4", "--duration", "2", "--arrivals", "uniform")


def test_squishy_packs_in_duty_cycles():
    told = json.loads(said("simulate", SESSIONS, "--packing", "squishy", "--duration", "2", "--json"))
    assert any(one["duty_s"] for one in told["accelerators"])


def test_a_cluster_that_is_too_small_says_who_is_not_served():
    told = json.loads(said("simulate", SESSIONS, "--cluster", "2xv100:2", "--duration", "2", "--json"))
    assert len(told["accelerators"]) == 2
    assert told["unserved"]
    assert told["attainment"] < 0.9


def test_a_session_that_nobody_can_serve_says_why(tmp_path):
    path = tmp_path / "sessions.yaml"
    path.write_text(
        "models: {m: {batches: [1], latency_ms: {v100: [20]}}}\n"
        "sessions: [{name: a, model: m, rate: 5, slo_ms: 100}, {name: b, model: m, rate: 5, slo_ms: 10}]\n"
    )
    there = CliRunner().invoke(app, ["inference", "simulate", str(path), "--cluster", "2xv100:2", "--duration", "1"]).output
    assert "b cannot run here: a request takes 20 ms, its SLO is 10 ms" in there
    other = CliRunner().invoke(app, ["inference", "simulate", str(path), "--cluster", "2xp100:2", "--duration", "1"]).output
    assert "a cannot run here: it has latencies on v100, the cluster p100" in other


def test_mixes_are_tried():
    told = json.loads(said("mixes", "--mixes", "2", "--duration", "2", "--json"))
    assert (len(told["mixes"]), told["within_bound"]) == (2, 2)
    assert "usual mixes" in said("mixes", "--mixes", "1", "--duration", "1")


def test_what_is_wrong_is_told():
    assert "known: usual" in refused("mixes", "none")
    assert "--duration 1000000: expected at most 20,000,000 requests" in refused("simulate", SESSIONS, "--duration", "1e6")
    assert "one type" in refused("simulate", SESSIONS, "--packing", "squishy", "--cluster", "4xv100:4,4xp100:4")
    assert "packing pooled: field 'wait'" in refused("simulate", SESSIONS, "--wait", "-1")


def test_the_example_of_sessions_beside_training_runs_and_is_served(tmp_path):
    trace, events = tmp_path / "jobs.csv", tmp_path / "run.jsonl"
    trace.write_text(
        "name,submitted_s,duration_s,workers,mode\nphotos,0,900,1,elastic\ntraining,0,600,2,\nsearch,300,600,1,elastic\n"
    )
    how = ["--config", SESSIONS.replace("sessions", "inference"), "--trace", str(trace), "--cluster", "6xv100:6", "--json"]
    done = CliRunner().invoke(app, ["simulate", *how, "--launch-cost", "20", "--events", str(events)])
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(said("replay", str(events), "--from", "310", "--until", "330", "--json"))
    photos, search = told["results"]
    assert photos["attainment"] > 0.99
    assert search["attainment"] == pytest.approx(0.5, abs=0.05)  # it starts until second 320


def test_a_simulation_tells_which_part_of_the_requests_was_in_time(tmp_path):
    trace, rates = tmp_path / "jobs.csv", tmp_path / "rates.yaml"
    trace.write_text("name,submitted_s,duration_s,workers,mode\nphotos,100,900,1,elastic\ntraining,0,300,2,\n")
    rates.write_text("photos: [[0, 300], [400, 1500]]\n")
    how = ["simulate", "--config", SESSIONS.replace("sessions", "inference"), "--trace", str(trace), "--cluster", "6xv100:6"]
    how += ["--launch-cost", "90", "--restart-cost", "90"]
    done = CliRunner().invoke(app, [*how, "--request-rates", str(rates), "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    # From 100 to 1180 with a start each at 120 and 420. When it grows, the accelerator that it has goes on: for 90 seconds it
    # answers 800 of 1,500 requests a second.
    requests = 300 * 300 + 1500 * 780
    assert told["sessions"]["photos"] == pytest.approx(1 - (300 * 110 + 700 * 90) / requests, abs=0.02)
    assert told["slo_attainment"] == told["sessions"]["photos"]
    assert "requests within their SLO" in CliRunner().invoke(app, how).stdout
    rates.write_text("photo: [[0, 300]]\n")
    wrong = CliRunner().invoke(app, [*how, "--request-rates", str(rates)]).exception
    assert (
        "rates.yaml:1: field 'photo': expected the name of a job of the trace that is a session (did you mean 'photos'?)"
        in str(wrong)
    )
    rates.write_text("photos: [[0, 300]]\ntraining: [[0, 300]]\n")
    wrong = CliRunner().invoke(app, [*how, "--request-rates", str(rates)]).exception
    assert "rates.yaml:2: field 'training': expected the name of a job of the trace that is a session" in str(wrong)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("photos: []", "at least one time in seconds with a rate"),
        ("photos: [[0]]", "a time in seconds and a rate"),
        ("photos: [[10, 5], [10, 6]]", "times in ascending order"),
        ("photos: [[0, 0]]", "requests per second above 0"),
        ("photos: [[0, 1e9]]", "requests per second above 0, at most 1,000,000"),
        ("photos: [[-1, 5]]", "a time of at least 0 seconds"),
    ],
)
def test_wrong_request_rates_are_told(tmp_path, text, why):
    path = tmp_path / "rates.yaml"
    path.write_text(text)
    with pytest.raises(FairleadError, match=why):
        read_request_rates(path, ["photos"])
