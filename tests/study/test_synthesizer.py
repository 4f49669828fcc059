"""The synthesizer: what it foresees comes true, what it gives up could not have won, and a switch is an event like others."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from fairlead.backends.simulated import Simulated
from fairlead.cli.main import app
from fairlead.config import Part, SchedulerConfig
from fairlead.core.errors import FairleadError, InputError
from fairlead.core.events import SchedulerSwitched
from fairlead.core.job import Job
from fairlead.engine.journal import MemoryJournal
from fairlead.engine.loop import Loop
from fairlead.engine.state import State
from fairlead.study.simulate import Simulation, simulate
from fairlead.study.synthesizer import Advisor, Forecast, Outlook, Wanted, combinations
from fairlead.study.synthesizer.outlook import Limit, Moment, look_ahead
from fairlead.study.synthesizer.run import synthesize
from fairlead.testing import check_events, cluster, random_jobs, random_table
from fairlead.workloads.profiles import ThroughputTable
from fairlead.workloads.trace import Trace

THREE = [Part("fifo"), Part("srtf"), Part("las")]
DOORS = [Part("accept-all"), Part("accept-up-to", {"factor": 1.2})]
ONE_TYPE = ThroughputTable.timed(("v100",))


def crowd(seed: int = 3, count: int = 40) -> list[Job]:
    """Long and short jobs that come faster than they can run."""
    draw = np.random.default_rng(seed)
    times = np.sort(draw.uniform(0, 20_000, count)).tolist()
    sizes = draw.choice([1, 1, 1, 2, 4], count).tolist()
    steps = (10 ** draw.uniform(2.5, 4.5, count)).tolist()
    return [Job(f"j{n}", submitted_s=t, workers=w, steps=s) for n, (t, w, s) in enumerate(zip(times, sizes, steps))]


def candidates(**base: float) -> tuple[SchedulerConfig, ...]:
    return combinations(SchedulerConfig(**base), THREE, DOORS)


def test_every_policy_with_every_admission_by_name():
    names = [one.label for one in candidates()]
    assert names[:3] == ["fifo", "fifo + accept-up-to(factor=1.2)", "srtf"]
    assert len(set(names)) == 6
    both = combinations(SchedulerConfig(), THREE[:1], (), [Part("consolidated"), Part("spread")])
    assert [one.label for one in both] == ["fifo + consolidated", "fifo + spread"]
    with pytest.raises(InputError, match="every candidate once"):
        combinations(SchedulerConfig(), [Part("fifo"), Part("fifo")])
    with pytest.raises(InputError, match="at least one policy"):
        combinations(SchedulerConfig(), [])


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "max-min-fairness"])
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_foreseen_comes_true_where_nobody_comes(policy, seed):
    machine = cluster("v100:4,k80:4")
    table = random_table(seed, machine.type_names)
    scheduler = SchedulerConfig(Part(policy))
    backend = Simulated(machine, table, random_jobs(seed, 14, table=table, largest=4))
    loop = Loop(State(machine), backend, scheduler.build(table))
    loop.run(until=900.0)
    view = loop.state.snapshot(backend.now)
    assert len(view.jobs) or len(view.queued)
    numbers = np.concatenate((view.jobs.number, view.queued.number))
    arrivals = tuple(job for job in backend._arrivals if job.submitted_s > backend.now)
    outlook = look_ahead(Moment(view.detached(), scheduler, loop.state.memo, arrivals), scheduler, table)
    loop.run()
    everybody = loop.state.everybody()
    came = np.maximum(everybody.submitted_s, 900.0)
    counted = np.isin(everybody.number, numbers) | (everybody.submitted_s > 900.0)
    assert outlook.complete
    assert outlook.jct_s == pytest.approx(float((everybody.ended_s - came)[counted].mean()), rel=1e-9)
    fresh = counted & ((everybody.first_started_s > 900.0) | (everybody.submitted_s > 900.0))
    assert outlook.responsiveness_s == pytest.approx(float((everybody.first_started_s - came)[fresh].mean()), rel=1e-9)


def moment_of(seed: int) -> tuple[Moment, Loop]:
    machine = cluster("v100:4,v100:4")
    backend = Simulated(machine, ONE_TYPE, crowd(seed, 90))
    loop = Loop(State(machine), backend, candidates()[0].build(ONE_TYPE))
    loop.run(until=12_000.0)
    return Moment(loop.state.snapshot(backend.now).detached(), candidates()[0], loop.state.memo), loop


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weights", [{"jct": 1.0}, {"jct": 1.0, "responsiveness": 2.0}])
def test_who_is_given_up_could_not_have_won(seed, weights):
    moment, _ = moment_of(seed)
    wanted = Wanted(weights)
    whole = {one.label: look_ahead(moment, one, ONE_TYPE) for one in candidates()}
    running = whole["fifo"]
    scores = {label: wanted.score(outlook, running) for label, outlook in whole.items()}
    best = min(scores.values())
    given_up = 0
    for one in candidates():
        seen = look_ahead(moment, one, ONE_TYPE, Limit(wanted, running, best))
        if seen.complete:
            assert seen == whole[one.label]
        else:
            given_up += 1
            assert scores[one.label] > best
            assert seen.jct_s <= whole[one.label].jct_s + 1e-6
            assert seen.responsiveness_s <= whole[one.label].responsiveness_s + 1e-6
    assert given_up, "else this shows nothing"
    advice = Advisor(candidates(), ONE_TYPE, wanted=wanted, margin=0.0).advise(moment.view, candidates()[0])
    assert scores[advice.chosen.label] == pytest.approx(best)
    assert advice.gain == pytest.approx(1 - best)


def test_advice_does_not_depend_on_the_number_of_processes():
    moment, _ = moment_of(1)
    alone = Advisor(candidates(), ONE_TYPE).advise(moment.view, candidates()[0])
    with Advisor(candidates(), ONE_TYPE, processes=2) as several:
        together = several.advise(moment.view, candidates()[0])
    assert alone.switch
    assert (alone.chosen, alone.gain, alone.why) == (together.chosen, together.gain, together.why)


def test_nobody_switches_for_less_than_the_margin():
    moment, _ = moment_of(1)
    gain = Advisor(candidates(), ONE_TYPE).advise(moment.view, candidates()[0]).gain
    assert gain > 0.01
    assert not Advisor(candidates(), ONE_TYPE, margin=gain + 0.01).advise(moment.view, candidates()[0]).switch


class Broken:
    """Cannot decide."""

    def select(self, view, memo):
        raise FairleadError("no idea")


def test_a_candidate_that_fails_is_not_chosen_and_one_that_runs_and_fails_is_left(monkeypatch):
    moment, _ = moment_of(1)
    good, bad = candidates()[0], SchedulerConfig(Part("srtf"), name="bad")
    make = SchedulerConfig.build

    def build(self, table, registry=None):
        stages = make(self, table, registry)
        return stages if self.name != "bad" else type(stages)(**{**stages.__dict__, "policy": Broken()})

    monkeypatch.setattr(SchedulerConfig, "build", build)
    advisor = Advisor([good, bad], ONE_TYPE)
    advice = advisor.advise(moment.view, good)
    assert not advice.switch
    assert dict(advice.outlooks)["bad"].problem == "FairleadError: no idea"
    assert advisor.advise(moment.view, bad).chosen == good


def test_a_synthesized_run_is_a_run_like_others():
    jobs = Trace.of(crowd(count=60))
    machine = cluster("v100:4,v100:4")
    journal = MemoryJournal()
    given = Simulation(jobs, machine, candidates()[0], ONE_TYPE)
    with Advisor(candidates(), ONE_TYPE) as advisor:
        found = synthesize(given, advisor, every=4, journal=journal)
    state = check_events(list(journal))
    assert state.digest() == found.run.state.digest()
    switched = [event for event in journal if isinstance(event, SchedulerSwitched)]
    assert switched
    assert [event.why for event in switched] == [one.why for one in found.advice if one.switch]
    assert math.isclose(sum(found.shares.values()), 1.0)

    def mean_jct(state: State) -> float:
        everybody = state.everybody()
        return float((everybody.ended_s - everybody.submitted_s).mean())

    static = sorted(mean_jct(simulate(Simulation(jobs, machine, one, ONE_TYPE)).state) for one in candidates())
    assert mean_jct(found.run.state) <= 1.02 * static[1]
    assert mean_jct(found.run.state) <= 0.8 * static[-1]


def test_the_same_inputs_give_the_same_log():
    jobs, machine = Trace.of(crowd(count=30)), cluster("v100:4,v100:4")
    logs = []
    for _ in range(2):
        journal = MemoryJournal()
        advisor = Advisor(candidates(), ONE_TYPE, forecast=Forecast("recent", window_s=3600.0, seed=5))
        synthesize(Simulation(jobs, machine, candidates()[0], ONE_TYPE), advisor, journal=journal)
        logs.append(list(map(repr, journal)))
    assert logs[0] == logs[1]


def test_rounds_are_needed_and_counted_from_one():
    given = Simulation(Trace.of(crowd(count=3)), cluster("v100:4"), candidates(round_s=0.0)[0], ONE_TYPE)
    with pytest.raises(InputError, match="with rounds"):
        synthesize(given, Advisor(candidates(round_s=0.0), ONE_TYPE))
    given = Simulation(Trace.of(crowd(count=3)), cluster("v100:4"), candidates()[0], ONE_TYPE)
    with pytest.raises(InputError, match="from 1 on"):
        synthesize(given, Advisor(candidates(), ONE_TYPE), every=0)


def test_the_recent_past_comes_again():
    past = [Job(f"old{n}", submitted_s=100.0 * n, workers=1 + n % 2) for n in range(100)][::-1]
    forecast = Forecast("recent", window_s=5000.0, seed=1)
    coming = forecast.coming(10_000.0, past)
    assert coming == forecast.coming(10_000.0, past)
    assert 25 <= len(coming) <= 80  # fifty, give or take
    assert all(10_000.0 <= one.submitted_s <= 15_000.0 for one in coming)
    assert {one.workers for one in coming} == {1, 2}
    assert len({one.name for one in coming}) == len(coming)
    assert forecast.coming(1e6, past) == ()  # nobody came lately
    assert Forecast().coming(10_000.0, past) == ()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Wanted({"speed": 1.0}), "speed"),
        (lambda: Wanted({"jct": 0.0}), "above 0"),
        (lambda: Wanted({}), "at least one metric"),
        (lambda: Forecast("tomorrow"), "nobody or recent"),  # type: ignore[arg-type]
        (lambda: Forecast("recent", window_s=0.0), "above 0"),
        (lambda: Advisor([], ONE_TYPE), "at least one candidate"),
        (lambda: Advisor(candidates(), ONE_TYPE, margin=-0.1), "from 0 on"),
    ],
)
def test_what_cannot_be_is_said(make, said):
    with pytest.raises(InputError, match=said):
        make()


def test_an_outlook_of_nobody_is_no_reason_to_switch():
    wanted = Wanted({"jct": 1.0, "responsiveness": 1.0})
    assert wanted.score(Outlook(0.0, 0.0), Outlook(0.0, 0.0)) == 1.0


def test_the_command_compares_with_each_by_itself(tmp_path):
    events = tmp_path / "events.jsonl"
    asked = ["synthesize", "--jobs", "25", "--load", "20", "--cluster", "8xv100:4", "--policies", "fifo,srtf", "--admissions"]
    asked += ["accept-all", "--processes", "1", "--events", str(events), "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert [row["scheduler"] for row in told["results"]] == ["synthesized", "fifo", "srtf"]
    assert told["looks"] > 0
    assert events.read_text().count('"why":"synthesizer') == len(told["switches"])


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--metric", "speed", "speed"), ("--metric", "jct=x", "name=weight"), ("--forecast", "never", "nobody or recent")],
)
def test_the_command_says_what_is_wrong(option, value, said):
    done = CliRunner().invoke(app, ["synthesize", "--jobs", "5", option, value])
    assert done.exit_code != 0
    assert said in str(done.exception) + done.output
