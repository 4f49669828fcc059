"""The synthesizer beside a running cluster: the state goes out over HTTP, and a better scheduler comes back as a switch."""

from __future__ import annotations

import json
import math
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from serving import PATIENCE_S, served, until
from typer.testing import CliRunner

from fairlead.cli import cmd_synthesize as advise
from fairlead.cli import cmd_when
from fairlead.cli.cmd_when import _guesses, _sentence, _table, _unknown_end
from fairlead.cli.main import app
from fairlead.core.events import JobSubmitted, ProgressReported, RoundPlanned, SchedulerSwitched
from fairlead.core.job import Job
from fairlead.core.plan import Launches, RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.engine.state import State
from fairlead.experiments.forecast_json import forecast_from_json, forecast_to_json
from fairlead.experiments.live_inputs import (
    RateGuesses,
    fetch_state,
    measured_table,
    open_ended_jobs,
    rate_guesses,
    with_assumed_ends,
)
from fairlead.experiments.lookahead import (
    ClusterForecast,
    ForecastOptions,
    JobForecast,
    JobTimes,
    forecast,
)
from fairlead.runtime.http_client import ControlPlaneClient, RefusedRequest
from fairlead.runtime.protocol.task_file import UNKNOWN_STEPS
from fairlead.testing import cluster


@pytest.fixture
def busy(monkeypatch):
    """Four accelerators, held by one long gang, with short jobs behind it that a strict order would let wait."""
    with served("v100:4") as cluster:
        monkeypatch.setenv("FAIRLEAD_URL", cluster.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", cluster.token)
        plane = ControlPlaneClient(cluster.url, cluster.token)
        cluster.plane.backend.agent_joined(0, ())
        plane.switch({"policy": "fifo", "estimator": "measured", "rounds": 0.2})
        jobs = [{"name": "long", "run": "sleep 99", "workers": 4, "kind": "slow", "steps": 36_000, "time_limit_s": 36_000}]
        jobs += [{"name": f"short-{n}", "run": "sleep 1", "kind": "slow", "steps": 10} for n in range(3)]
        plane.submit(jobs)
        yield cluster, plane


def test_the_state_that_is_told_is_the_state(busy):
    cluster, plane = busy
    told = fetch_state(plane)
    with cluster.plane.backend.lock:
        mine = cluster.plane.loop.state
        assert told.next_number == mine.next_number == 4
        assert [one.name for one in told.job_of.values()] == ["long", "short-0", "short-1", "short-2"]
        assert told.scheduler == mine.scheduler
    table = measured_table(plane.rates(), told)
    assert table.alone[table.row("slow", 4), 0] == pytest.approx(10.0)  # nobody has measured it: an hour's run
    assert table.types == ("v100",)


def test_who_did_not_say_how_many_steps_it_will_do_is_taken_to_go_on_for_an_hour(busy):
    _, plane = busy
    plane.submit([{"name": "open", "run": "sleep 99", "kind": "slow"}])
    told = fetch_state(plane)
    table = measured_table(plane.rates(), told)
    ended = with_assumed_ends(told, table, open_ended_jobs(told))
    (number,) = [number for number, job in ended.job_of.items() if job.name == "open"]
    an_hour = 3600 * table.alone[table.row("slow", 1), 0]
    assert (ended.job_of[number].steps, ended.columns["steps"][number]) == (an_hour, an_hour)
    assert ended.job_of[0].steps == 36_000


def test_a_kind_that_nobody_measured_runs_for_an_hour_also_where_its_first_job_did_not_say_its_steps(busy):
    _, plane = busy
    plane.submit(
        [{"name": "open", "run": "sleep 99", "kind": "new"}, {"name": "told", "run": "sleep 99", "kind": "new", "steps": 72}]
    )
    table = measured_table(plane.rates(), fetch_state(plane))
    assert table.alone[table.row("new", 1), 0] == pytest.approx(72 / 3600)


def there(*jobs: Job) -> State:
    state = State(cluster("v100:4"))
    for number, job in enumerate(jobs):
        apply_event(state, JobSubmitted(0.0, number, job))
    return state


def seen(*rates: tuple[str, int, float]) -> dict:
    keys = ("kind", "workers", "steps_per_s")
    return {"rates": [{**dict(zip(keys, one)), "type": "v100", "placement": "consolidated"} for one in rates]}


def test_an_elastic_job_is_as_fast_as_it_was_measured_at_other_sizes_and_not_taken_to_run_for_an_hour():
    state = there(Job("grows", steps=90.0, kind="net", workers=1, mode="elastic"))
    told = seen(("net", 4, 8.0), ("net", 2, 5.0))
    table = measured_table(told, state)
    assert table.alone[[table.row("net", size) for size in (1, 2, 4)], 0].tolist() == [2.5, 5.0, 8.0], "of the nearest size"
    assert rate_guesses(told, state) == RateGuesses(scaled={0: "net"})


def test_who_runs_and_of_whose_kind_nothing_is_remembered_goes_on_as_fast_as_it_is_seen_to():
    state = there(Job("grows", steps=90.0, kind="net", workers=1, mode="elastic"))
    one = np.array([0])
    starts = Launches(one, one * 0, np.array([0, 2]), np.array([0, 1]))
    apply_event(state, RoundPlanned(RoundPlan(1.0, admitted=one, launches=starts)))
    assert rate_guesses(seen(), state) == RateGuesses(unmeasured={0: "net"}), "it has told nothing yet"
    apply_event(state, ProgressReported(3.0, one, np.array([10.0]), np.array([5.0]), np.array([3.0])))
    table = measured_table(seen(), state)
    assert table.alone[[table.row("net", size) for size in (1, 2)], 0].tolist() == [2.5, 5.0]
    assert rate_guesses(seen(), state) == RateGuesses(scaled={0: "net"})
    state.scheduler = {"policy": "fifo", "rounds": 5}
    (found,) = forecast(state, table, ForecastOptions(simulations=0)).jobs
    assert found.without_arrivals.ends_s < 40.0, "80 steps, with one worker or two"
    measured = seen(("net", 2, 4.0))
    table = measured_table(measured, state)
    assert table.alone[table.row("net", 2), 0] == 4.0, "what is remembered counts first"


def test_of_a_job_without_an_end_one_guess_is_told_and_of_a_kind_that_was_measured_none():
    endless = Job("open", steps=UNKNOWN_STEPS, kind="new")
    assert rate_guesses(seen(), there(endless)) == RateGuesses(), "it goes on for an hour, which is said of it already"
    assert rate_guesses(seen(), there(endless, Job("ends", steps=9.0, kind="new"))) == RateGuesses(unmeasured={1: "new"})
    assert rate_guesses(seen(("new", 1, 1.0)), there(Job("ends", steps=9.0, kind="new"))) == RateGuesses()


def test_only_an_admin_gets_it(busy):
    cluster, _ = busy
    assert httpx.get(f"{cluster.url}/v1/state").status_code == 401
    assert httpx.get(f"{cluster.url}/v1/state", headers={"Authorization": "Bearer nobody"}).status_code == 401
    assert httpx.get(f"{cluster.url}/v1/state", headers={"Authorization": f"Bearer {cluster.user}"}).status_code == 403


def test_a_token_that_nobody_knows_is_answered_with_where_it_comes_from(busy):
    cluster, _ = busy
    with pytest.raises(RefusedRequest, match="does not accept this token"):
        ControlPlaneClient(cluster.url, "nobody").jobs()


def test_advice_is_told_and_followed_when_wanted(busy):
    cluster, plane = busy
    asked = ["advise", "--policies", "fifo,srtf", "--admissions", "accept-all", "--processes", "1", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert (told["running"], told["chosen"], told["switch"]) == ("fifo", "srtf", True)
    assert plane.scheduler()["policy"] == "fifo", "a dry run touches nothing"
    said = " ".join(CliRunner().invoke(app, asked[:-1]).stderr.split())
    assert "recommended: srtf instead of fifo, " in said
    assert "synthesizer" not in said
    done = CliRunner().invoke(app, [*asked, "--switch", "--looks", "1"])
    assert done.exit_code == 0, (done.output, done.exception)
    assert plane.scheduler()["policy"] == "srtf"
    (last,) = [event for event in cluster.journal if isinstance(event, SchedulerSwitched)][1:]
    assert "synthesizer: srtf instead of fifo" in last.why


def test_a_switch_that_a_person_made_during_the_look_stands(busy, monkeypatch):
    cluster, plane = busy
    look = advise.advise_state

    def long_look(state, advisor):
        plane.switch({"policy": "las", "estimator": "measured", "rounds": 0.2}, "a person")
        return look(state, advisor)

    monkeypatch.setattr(advise, "advise_state", long_look)
    asked = ["advise", "--policies", "fifo,srtf", "--admissions", "accept-all", "--looks", "1", "--processes", "1", "--switch"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "not switched, because a user switched" in " ".join(done.stderr.split())
    assert plane.scheduler()["policy"] == "las"
    assert [event.why for event in cluster.journal if isinstance(event, SchedulerSwitched)][1:] == ["a person"]


def test_of_two_who_switch_instead_of_the_same_scheduler_one_does(busy, monkeypatch):
    cluster, plane = busy
    present, inbox, arrived = plane.scheduler(), cluster.plane.backend.inbox, threading.Semaphore(0)
    put = inbox.put

    def noted(*request: Any) -> None:
        put(*request)
        arrived.release()

    monkeypatch.setattr(inbox, "put", noted)
    with cluster.plane.backend.lock:  # both come before the loop handles one
        asked = [
            threading.Thread(target=lambda n=n: answers.append(_status(plane, {**present, "rounds": 0.3 + n}, present)))
            for n in range(2)
        ]
        answers: list[int] = []
        for one in asked:
            one.start()
        assert all(arrived.acquire(timeout=PATIENCE_S) for _ in asked)
    for one in asked:
        one.join()
    assert sorted(answers) == [200, 409]
    assert _status(plane, {**present, "rounds": 0.5}, {}) == 409
    assert _status(plane, {**present, "rounds": 0.5}, plane.scheduler()) == 200
    assert plane.scheduler()["rounds"] == 0.5


def _status(plane: ControlPlaneClient, scheduler: dict, instead_of: dict) -> int:
    try:
        plane.switch(scheduler, instead_of=instead_of)
    except RefusedRequest as answer:
        return answer.status
    return 200


def test_when_a_job_will_run_is_looked_ahead_from_the_state(busy):
    cluster, plane = busy
    plane.submit([{"name": "open", "run": "sleep 99", "kind": "slow"}])
    events = len(list(cluster.journal))
    done = CliRunner().invoke(app, ["when", "--json"])
    assert done.exit_code == 0, (done.output, done.exception)
    told = json.loads(done.stdout)
    assert told["open_ended"] == 1
    assert told["unmeasured_kinds"] == ["slow"]
    jobs = {one["name"]: one for one in told["jobs"]}
    assert jobs["long"]["ends_s"][1] == pytest.approx(36_000, abs=120), "at its time limit, as its rate is not measured"
    assert jobs["long"]["assumed"] == "time_limit"
    assert (jobs["short-0"]["ends_s"], jobs["short-0"]["assumed"]) == (None, "unmeasured")
    for short in ("short-0", "short-1", "short-2"):
        assert not jobs[short]["runs"]
        assert jobs[short]["starts_s"][0] == pytest.approx(jobs["long"]["ends_s"][0], abs=1)
        assert jobs[short]["without_arrivals"]["starts_s"] <= jobs[short]["starts_s"][2]
    assert not any(isinstance(event, SchedulerSwitched) for event in list(cluster.journal)[events:]), "nothing is touched"


def test_when_one_job_will_run_is_a_sentence_and_of_all_a_table(busy):
    _, plane = busy
    done = CliRunner().invoke(app, ["when", "short-1"])
    assert done.exit_code == 0, (done.output, done.exception)
    said = " ".join(done.stdout.split())
    assert said.startswith("short-1 should start in 10.0 h; its end is unknown: the steps per second of its job type")
    assert " ".join(done.stderr.split()) == (
        "the start may depend on assumptions about 3 other jobs; `fairlead when` names them"
    )
    every = CliRunner().invoke(app, ["when", "--simulations", "0"])
    assert "assumed to run until the time limit: long" in " ".join(every.stderr.split())
    assert "end unknown, so assumed to keep running: short-0, short-1, short-2" in " ".join(every.stderr.split())
    some = json.loads(CliRunner().invoke(app, ["when", "short-[01]", "long", "--simulations", "0", "--json"]).stdout)
    assert [one["name"] for one in some["jobs"]] == ["long", "short-0", "short-1"]
    pending = CliRunner().invoke(app, ["when", "--state", "waiting,queued", "--simulations", "0"]).stdout
    assert "short-1" in pending
    nothing = CliRunner().invoke(app, ["when", "--array", "sweep"])
    assert str(nothing.exception) == "no job matches: array sweep"
    table = CliRunner().invoke(app, ["when", "--simulations", "0"]).stdout
    assert [line.split()[0] for line in table.splitlines() if "long" in line or "short" in line][1:] == [
        "short-0",
        "short-1",
        "short-2",
    ]
    assert CliRunner().invoke(app, ["when", "--window", "inf"]).exit_code == 2
    hurried = CliRunner().invoke(app, ["when", "short-1", "--budget", "0"])
    assert "no forecast yet when short-1 should start: not within 0 s, where the simulation ended" in hurried.stdout
    assert "in 0 s the simulation reached only 0 s ahead; --budget gives it more time" in hurried.stderr
    told = json.loads(CliRunner().invoke(app, ["when", "short-1", "--budget", "0", "--json"]).stdout)
    assert (told["complete"], told["jobs"][0]["starts_s"]) == (False, [None] * 3)
    assert told["horizon_s"] < 1.0
    number = plane.cancel("short-2")["number"]
    gone = CliRunner().invoke(app, ["when", str(number)])
    assert "short-2 is cancelled" in gone.stdout


def test_before_a_node_has_joined_there_is_no_forecast(monkeypatch):
    with served("v100:4") as cluster:
        monkeypatch.setenv("FAIRLEAD_URL", cluster.url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", cluster.token)
        plane = ControlPlaneClient(cluster.url, cluster.token)
        plane.submit([{"name": name, "run": "true"} for name in ("one", "two")])
        until(lambda: all("are up" in one["reason"]["text"] for one in plane.jobs(all_users=True)))
        why = f"1 of 1 nodes have not joined ({plane.nodes()[0]['name']}); ask again when they have"
        assert CliRunner().invoke(app, ["when", "one"]).stdout == f"no forecast for one: {why}\n"
        assert CliRunner().invoke(app, ["when"]).stdout.endswith(f"no forecast for one, two: {why}\n")


def test_a_forecast_names_the_nodes_that_it_does_without(busy, monkeypatch):
    why = "1 of 2 nodes have not joined (v100-1); ask again when they have"
    monkeypatch.setattr(cmd_when, "_missing_nodes", lambda plane: why)
    told = CliRunner().invoke(app, ["when", "short-1", "--simulations", "0"])
    assert "short-1 should start in" in told.stdout
    assert f"this forecast is for the nodes that are there: {why}" in " ".join(told.stderr.split())


def test_where_no_node_is_left_the_reason_is_told_instead_of_times(busy):
    _, plane = busy
    (node,) = plane.nodes()
    plane.drain(node["name"])
    until(lambda: all("0 eligible GPUs are up" in one.get("reason", {}).get("text", "") for one in plane.jobs(all_users=True)))
    table = CliRunner().invoke(app, ["when", "--simulations", "0"]).stdout
    assert table.splitlines()[-2:] == [
        "no forecast for long: Waiting for nodes: needs 4 GPUs; 0 eligible GPUs are up",
        "no forecast for short-0, short-1, short-2: Waiting for nodes: needs 1 GPU; 0 eligible GPUs are up",
    ]
    of_one = CliRunner().invoke(app, ["when", "short-1", "--simulations", "0"])
    assert of_one.stderr == "", "that it waits rests on no guess"
    said = of_one.stdout.strip()
    assert said == "short-1 should not start within 30.0 d at present: Waiting for nodes: needs 1 GPU; 0 eligible GPUs are up"
    told = json.loads(CliRunner().invoke(app, ["when", "--simulations", "0", "--json"]).stdout)
    assert {one["reason"]["code"] for one in told["jobs"]} == {"nodes-down"}
    plane.drain(node["name"], undo=True)
    until(lambda: any(one["phase"] == "running" for one in plane.jobs(all_users=True)))
    assert "no forecast" not in CliRunner().invoke(app, ["when", "--simulations", "0"]).stdout, "everybody has a time again"


def test_of_one_job_it_is_told_what_is_guessed_of_it_and_that_others_are(busy):
    _, plane = busy
    plane.submit([{"name": "open", "run": "sleep 99"}, {"name": "other", "run": "sleep 99", "kind": "odd", "steps": 10}])
    until(lambda: plane.job("long")["phase"] == "running")

    def notes(name: str) -> str:
        return " ".join(CliRunner().invoke(app, ["when", name, "--simulations", "0"]).stderr.split())

    limit = "assumed to run until the time limit: long"
    assert notes("long") == limit, "a running job does not wait for others"
    others = "the start may depend on assumptions about 5 other jobs; `fairlead when` names them"
    assert (notes("other"), notes("open")) == (others, others)
    said = " ".join(CliRunner().invoke(app, ["when", "open", "--simulations", "0"]).stdout.split())
    assert said.endswith("; its end is unknown: it has no number of steps, and no similar job has finished")
    assert "unknown" in CliRunner().invoke(app, ["when", "--simulations", "0"]).stdout
    guesses = {one["name"]: one["assumed"] for one in json.loads(CliRunner().invoke(app, ["when", "--json"]).stdout)["jobs"]}
    assert (guesses["long"], guesses["open"], guesses["other"]) == ("time_limit", "unknown", "unmeasured")


def test_a_forecast_says_that_it_depends_on_jobs_without_a_first_step(busy):
    """It is not known whether they report steps: then they can be preempted, and otherwise they are protected for a while."""
    _, plane = busy
    plane.cancel("long")
    plane.switch({"policy": "las", "estimator": "measured", "rounds": 0.2, "first_step_s": 120.0})
    plane.submit([{"name": "silent", "run": "sleep 99", "workers": 4, "priority": 9}])
    for n in range(3):
        plane.cancel(f"short-{n}")
    until(lambda: plane.job("silent")["phase"] == "running")
    plane.submit([{"name": "next", "run": "sleep 9"}])

    def notes(name: str) -> str:
        return " ".join(CliRunner().invoke(app, ["when", name, "--simulations", "0"]).stderr.split())

    protected = "no step reported yet, so assumed to keep their GPUs for 2.0 min (first_step_s): silent"
    assert f"{protected}; other jobs may start sooner if they report steps" in notes("next")
    assert "first_step_s" not in notes("silent")


def test_a_job_behind_one_of_unknown_end_starts_after_it(busy):
    _, plane = busy
    until(lambda: plane.job("long")["phase"] == "running")
    plane.cancel("long")  # its run time is no end that others may have
    plane.submit([{"name": "holds", "run": "sleep 99", "workers": 4, "priority": 9}])
    plane.submit([{"name": "wide", "run": "sleep 9", "workers": 4}, {"name": "next", "run": "sleep 9", "after": ["holds"]}])
    for n in range(3):
        plane.cancel(f"short-{n}")
    until(lambda: plane.job("holds")["phase"] == "running")
    asked = ["when", "--simulations", "0"]
    assert CliRunner().invoke(app, [*asked, "next"]).stdout.strip() == "next should start after holds ends (unknown)"
    assert CliRunner().invoke(app, [*asked, "wide"]).stdout.strip() == "wide should start after other jobs end (unknown): holds"
    told = CliRunner().invoke(app, asked).stdout
    assert told.splitlines()[-2:] == [
        "wide should start after other jobs end (unknown): holds",
        "next should start after holds ends (unknown)",
    ]
    jobs = {one["name"]: one for one in json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)["jobs"]}
    assert {name: one["blocked"] for name, one in jobs.items()} == {"holds": False, "wide": True, "next": True}
    assert jobs["wide"]["ends_s"] is None


def test_who_ended_between_two_questions_is_told_as_ended(busy, monkeypatch):
    def later(plane: ControlPlaneClient):
        plane.cancel("short-2")
        return fetch_state(plane)

    monkeypatch.setattr("fairlead.cli.cmd_when.fetch_state", later)
    assert "short-2 is cancelled" in CliRunner().invoke(app, ["when", "short-2"]).stdout


def test_who_is_to_be_refused_is_not_said_to_start_ever():
    refused = JobForecast(0, "wide", False, JobTimes(math.inf, 20.0), (JobTimes(math.inf, 20.0),))
    assert _sentence(refused, 90.0, again=False) == "wide should never start: it is refused or cancelled in 20 s"
    (cells,) = ([*column.cells] for column in _table([refused]).columns[1:2])
    assert cells == ["never"]


def test_a_sentence_tells_no_span_of_one_length_and_no_past_that_was_not():
    def told(*ends: float, again: bool = False) -> str:
        return _sentence(
            JobForecast(0, "j", False, JobTimes(5.0, 10.0), tuple(JobTimes(5.0, end) for end in ends)), 90.0, again
        )

    assert told(10.0, 10.0001) == "j should start in 5 s and end in 10 s, with or without arrivals"
    runs = JobForecast(0, "j", True, JobTimes(0.0, 10.0), ())
    assert _sentence(runs, 90.0, again=False) == "j runs and should end in 10 s"
    late = ClusterForecast((runs,), 1, ForecastOptions(), 90.0, open_ended=(0,), overdue={0: 120.0})
    assert _sentence(runs, 90.0, again=False, unknown=_unknown_end(runs, late)) == (
        "j runs; it has run as long as similar jobs took (2.0 min), or longer; its end is unknown"
    )
    assert told(10.0, 70.0, again=True) == (
        "j should resume in 5 s and end in 1.2 min (10 s to 1.2 min), with arrivals as in the last 1.5 min; "
        "without arrivals, it resumes in 5 s and ends in 10 s"
    )


def test_an_assumption_says_on_how_many_jobs_it_rests_and_no_job_ends_when_it_starts():
    quick = JobForecast(7, "j", False, JobTimes(5.0, 5.2), ())
    assert _sentence(quick, 90.0, again=False) == "j should start in 5 s and end soon after"
    assert [[*column.cells] for column in _table([quick]).columns[1::3]] == [["5 s"], ["soon after"]]
    ahead = ClusterForecast((quick,), 1, ForecastOptions(), 90.0, open_ended=(7,), priors={7: 4}, ranges={7: (3.0, 5.0)})
    assert [*_guesses(ahead, True, True)] == ["assumed to run as long as 4 similar jobs took (3.0 s to 5.0 s): j"]
    assert forecast_from_json(json.loads(json.dumps(forecast_to_json(ahead)))).ranges == {7: [3.0, 5.0]}


def test_what_is_due_in_less_than_a_second_is_due_at_once():
    def told(alone: float, *starts: float) -> str:
        looks = tuple(JobTimes(start, 3600.0) for start in starts)
        return _sentence(JobForecast(0, "j", False, JobTimes(alone, 3600.0), looks), 13.3, again=False)

    assert told(0.066) == "j should start at once and end in 1.0 h"
    assert told(0.066, 0.066, 0.4) == "j should start at once and end in 1.0 h, with or without arrivals"
    assert told(0.066, 0.066, 59.7) == (
        "j should start in 1.0 min (0 s to 1.0 min) and end in 1.0 h, with arrivals as in the last 13 s; "
        "without arrivals, it starts at once and ends in 1.0 h"
    )
    cut = _sentence(JobForecast(0, "j", False, JobTimes(5.0, math.inf), (), horizon_s=7200.0), 13.3, again=False)
    assert cut == "j should start in 5 s and end in over 2.0 h"
    never_starts = JobTimes(math.inf, math.inf)
    kept_out = _sentence(JobForecast(0, "j", False, JobTimes(5.0, 10.0), (never_starts, never_starts)), 90.0, again=False)
    assert (
        kept_out == "j should not start within 30.0 d, with arrivals as in the last 1.5 min; without arrivals, it starts in 5 s"
    )
    late = _sentence(JobForecast(0, "j", False, JobTimes(math.inf, math.inf), ()), 13.3, again=False, why="others go first")
    assert late == "j should not start within 30.0 d at present: others go first"
