"""Runs whose scheduler is chosen anew every few rounds: when it looks, what it switches to, and that a switch is an event like
any other."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from crowds import SIX, crowd
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.config.schedulers import Part
from fairlead.core.cluster import AcceleratorType, Cluster, Node
from fairlead.core.errors import InputError
from fairlead.core.events import SchedulerSwitched
from fairlead.core.job import Job
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.lookahead import ArrivalForecast
from fairlead.experiments.metrics import summarize
from fairlead.experiments.simulate import Simulation, SimulationRun, run_simulation
from fairlead.experiments.synthesize import Advisor, Objective, synthesize
from fairlead.testing import check_events
from fairlead.workloads.throughput_tables import ThroughputTable
from fairlead.workloads.trace import Trace

pytestmark = pytest.mark.long

HOUR = 3600.0
ONE_TYPE = ThroughputTable.timed(("v100",))


def given(jobs: list[Job], cluster: str = "8xv100:4") -> Simulation:
    return Simulation(Trace.of(jobs), Cluster.parse(cluster), SIX[0], ONE_TYPE)


def behind_long_ones() -> Simulation:
    """Two long gangs run; short jobs and a third long one wait."""
    long = [Job(f"long-{n}", 0.0, 20 * HOUR, workers=2) for n in range(3)]
    return given([*long, *(Job(f"short-{n}", 60.0 + n, HOUR) for n in range(8))], "4xv100:4")


def average(run: SimulationRun) -> float:
    jobs = run.record.jobs
    return float((jobs.ended_s - jobs.submitted_s).mean())


def test_it_leaves_first_come_first_served_where_short_jobs_wait_behind_long_ones():
    simulation = behind_long_ones()
    journal = MemoryJournal()
    found = synthesize(simulation, Advisor(SIX, ONE_TYPE), journal=journal)
    first = found.advice[0]
    assert first.running.label == "fifo"
    assert first.chosen.policy == Part("srtf")
    (switch,) = [event for event in journal.events if isinstance(event, SchedulerSwitched)]
    assert switch.scheduler["policy"] == "srtf"
    assert average(found.run) < 0.7 * average(run_simulation(simulation))


def test_a_run_under_changing_prices_has_a_cost():
    jobs = [Job("one", 0.0, 2 * HOUR), Job("two", 0.0, 3 * HOUR)]
    types = (AcceleratorType("v100", price_per_hour=1.0, price_changes=((HOUR, 4.0),)),)
    simulation = replace(given(jobs), cluster=Cluster((Node("n", "v100", 2),), types))
    found = synthesize(simulation, Advisor(SIX, ONE_TYPE))
    assert summarize(found.run.record).cost == pytest.approx(1 + 4 + 1 + 4 + 4)


def test_a_synthesized_run_is_a_run_like_others_and_a_good_one():
    simulation, journal = given(crowd(count=60)), MemoryJournal()
    found = synthesize(simulation, Advisor(SIX, ONE_TYPE), every=4, journal=journal)
    assert check_events(list(journal)).digest() == found.run.state.digest()
    switched = [event for event in journal if isinstance(event, SchedulerSwitched)]
    assert switched
    assert [event.why for event in switched] == [one.why for one in found.advice if one.switch]
    assert sum(found.shares.values()) == pytest.approx(1.0)
    alone = sorted(average(run_simulation(replace(simulation, scheduler=one))) for one in SIX)
    assert average(found.run) <= 1.02 * alone[1]
    assert average(found.run) <= 0.8 * alone[-1]


def test_the_same_inputs_give_the_same_log():
    logs = []
    for _ in range(2):
        journal = MemoryJournal()
        advisor = Advisor(SIX, ONE_TYPE, arrivals=ArrivalForecast("recent", window_s=HOUR, seed=5))
        synthesize(given(crowd(count=30)), advisor, journal=journal)
        logs.append(list(map(repr, journal)))
    assert logs[0] == logs[1]


def test_one_candidate_is_itself():
    simulation = given(crowd(2, 30))
    found = synthesize(simulation, Advisor(SIX[:1], ONE_TYPE))
    assert found.advice
    assert not any(advice.switch for advice in found.advice)
    assert average(found.run) == average(run_simulation(simulation))


def test_it_looks_again_though_nobody_came():
    """What is best for who is left may be another one than what was best for all."""
    found = synthesize(behind_long_ones(), Advisor(SIX[:3:2], ONE_TYPE), every=30)
    gaps = {round(late.time - soon.time) for soon, late in zip(found.advice, found.advice[1:])}
    assert gaps == {30 * 300}


def test_weights_choose_between_ending_soon_and_beginning_soon():
    found = synthesize(behind_long_ones(), Advisor(SIX, ONE_TYPE, objective=Objective({"responsiveness": 1.0})))
    chosen, seen = found.advice[0].chosen.label, dict(found.advice[0].forecasts)
    assert all(not other.complete or seen[chosen].responsiveness_s <= other.responsiveness_s for other in seen.values())


def test_rounds_are_needed_and_counted_from_one():
    simulation, advisor = behind_long_ones(), Advisor(SIX, ONE_TYPE)
    with pytest.raises(InputError, match="field 'every' is 0: expected a whole number of rounds, at least 1"):
        synthesize(simulation, advisor, every=0)
    with pytest.raises(InputError, match="field 'rounds' is 'event-driven': expected a scheduler with rounds"):
        synthesize(replace(simulation, scheduler=replace(SIX[0], round_s=0.0)), advisor)


def test_the_command_compares_with_each_by_itself(tmp_path):
    events = tmp_path / "events.jsonl"
    asked = ["synthesize", "--jobs", "25", "--load", "20", "--cluster", "8xv100:4", "--policies", "fifo,srtf", "--admissions"]
    asked += ["accept-all", "--processes", "1", "--events", str(events), "--report", str(tmp_path / "report.html"), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert [row["scheduler"] for row in told["results"]] == ["synthesized", "fifo", "srtf"]
    assert told["decisions"] > 0
    assert events.read_text().count('"why":"synthesizer') == len(told["switches"])
    assert (tmp_path / "report.html").is_file()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--metric", "speed", "speed"), ("--metric", "jct=x", "name=weight"), ("--forecast", "never", "none or recent")],
)
def test_the_command_says_what_is_wrong_before_it_looks_for_jobs(option, value, said):
    done = CliRunner().invoke(app, ["synthesize", "--trace", "absent.csv", option, value])
    assert done.exit_code != 0
    assert said in str(done.exception) + done.output
