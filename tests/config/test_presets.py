"""Presets: every one builds, runs and keeps the invariants; parts of it can be replaced; what is wrong is told by name."""

from __future__ import annotations

import pytest

from fairlead.config.registry import Preset, Registry, preset_named, presets
from fairlead.config.schedulers import (
    FIRST_STEP_S,
    MEASURED,
    Part,
    SchedulerConfig,
    compose,
    make,
    read_scheduler,
    scheduler_of,
)
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError, UnknownName
from fairlead.core.job import Phase
from fairlead.engine.journal import MemoryJournal
from fairlead.experiments.simulate import Faults, Outage, Simulation, run_simulation
from fairlead.testing import check_events
from fairlead.workloads.catalogue import accelerator_types
from fairlead.workloads.generate import Generator

SHARING = {"gavel-sharing", "gandiva"}
CLUSTER = Cluster.parse("4xv100:2,4xp100:2,4xk80:4", accelerator_types())
GANGS = Generator(jobs=18, jobs_per_hour=30.0, workers="multiple", durations=(600.0, 3000.0, 9000.0), users=3)
SINGLE = Generator(jobs=18, jobs_per_hour=30.0, workers="single", durations=(600.0, 3000.0, 9000.0), users=3)


@pytest.mark.parametrize("name", presets())
def test_a_preset_runs_and_keeps_the_invariants(name):
    journal = MemoryJournal()
    trace = (SINGLE if name == "allox" else GANGS).trace(3)
    faults = Faults((Outage(1, 4000.0, 9000.0),))
    given = Simulation(trace, CLUSTER, SchedulerConfig.preset(name), faults=faults)
    run = run_simulation(given, journal=journal)
    state = check_events(journal, residents=2 if name in SHARING else 1)
    assert state.digest() == run.state.digest()
    ended = {Phase(phase) for phase in run.record.jobs.phase.tolist()}
    assert ended <= {Phase.FINISHED, Phase.REFUSED}
    assert list(run.record.jobs.phase).count(Phase.FINISHED) >= 15


@pytest.mark.parametrize("preset", presets().values(), ids=list(presets()))
def test_a_preset_says_what_it_is_and_is_a_scheduler_file(preset, tmp_path):
    assert 20 < len(preset.about) < 140
    assert preset.about.endswith(".")
    assert "'" in preset.paper or "Blox" in preset.paper
    (tmp_path / "mine.yaml").write_text(preset.text)
    mine = SchedulerConfig.from_file(tmp_path / "mine.yaml")
    ours = SchedulerConfig.preset(preset.name)
    assert mine.build(None) == ours.build(None)
    assert ours.label == preset.name
    assert SchedulerConfig.from_data(ours.to_data()) == ours


def test_parts_of_a_preset_are_replaced_one_by_one():
    base = SchedulerConfig.preset("tiresias")
    mine = SchedulerConfig.preset("tiresias", placement={"name": "consolidated", "wait": True}, rounds=60)
    assert mine.placement == Part("consolidated", {"wait": True})
    assert (mine.policy, mine.admission, mine.round_s) == (base.policy, base.admission, 60.0)
    assert mine.label == "tiresias(placement=consolidated(wait=True), rounds=60)"
    assert SchedulerConfig.preset("tiresias", name="mine").label == "mine"


def test_a_scheduler_file_may_begin_with_a_preset(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("preset: las\nadmission: {name: accept-up-to, factor: 1.3}\n")
    mine = SchedulerConfig.from_file(path)
    assert (mine.policy, mine.admission) == (Part("las"), Part("accept-up-to", {"factor": 1.3}))
    assert mine.label == "las(admission=accept-up-to(factor=1.3))"
    live = read_scheduler(path)
    assert (live.estimator, live.first_step_s) == (MEASURED, FIRST_STEP_S)


def test_on_a_real_cluster_a_preset_measures():
    live = scheduler_of({"preset": "gavel"})
    assert (live.policy, live.estimator, live.round_s) == (Part("max-min-fairness-perf"), MEASURED, 360.0)


@pytest.mark.parametrize("name", ["horus", "horus-f", "horus-makespan", "opportunistic-packing", "performance-aware-packing"])
def test_on_a_real_cluster_a_preset_that_shares_by_prediction_watches(name):
    assert scheduler_of({"preset": name}).estimator.name == "monitored"
    assert type(compose({"preset": name}).estimator).__name__ == "Monitored"
    with pytest.raises(InputError, match="a real cluster has none"):
        compose({"preset": name, "estimator": "predicted"})


@pytest.mark.parametrize(
    ("name", "estimator", "instead"),
    [("pollux", "fitted", "measured"), ("optimus", "fitted", "measured")]
    + [(name, "predicted", "monitored") for name in ("horus", "horus-f", "horus-makespan")]
    + [(name, "predicted", "monitored") for name in ("opportunistic-packing", "performance-aware-packing")],
)
def test_a_presets_file_that_no_real_cluster_takes_says_what_to_write_there(name, estimator, instead, tmp_path):
    """`presets show pollux > mine.yaml`, and then `scheduler set mine.yaml`: the file says it, and so does who refuses it."""
    mine, text = tmp_path / "mine.yaml", preset_named(name).text
    assert f"on a real cluster: {instead}\n" in text
    mine.write_text(text)
    with pytest.raises(InputError, match=f"field 'estimator' is '{estimator}': .*: {instead}$"):
        compose(read_scheduler(mine).to_data())
    mine.write_text(text.replace(estimator, instead))
    assert type(compose(read_scheduler(mine).to_data()).estimator).__name__.lower() == instead


@pytest.mark.parametrize("preset", presets().values(), ids=list(presets()))
def test_a_real_cluster_takes_the_files_of_all_presets_that_do_not_say_otherwise(preset, tmp_path):
    (tmp_path / "mine.yaml").write_text(preset.text)
    if "on a real cluster:" not in preset.text:
        compose(read_scheduler(tmp_path / "mine.yaml").to_data())


@pytest.mark.parametrize("name", presets())
def test_a_scheduler_is_told_as_the_file_that_it_would_be(name, tmp_path):
    config = SchedulerConfig.preset(name)
    (tmp_path / "told.yaml").write_text(told := config.to_yaml())
    assert SchedulerConfig.from_file(tmp_path / "told.yaml") == config
    assert len(told.splitlines()) == len(config.to_data())
    assert "'name'" not in told, "YAML, not Python"


def test_whole_numbers_are_told_without_a_point_and_odd_words_as_what_they_are(tmp_path):
    quotas = Part("user-job-quota", {"limits": {"on": 4, "a: b": 2, "ä" * 200: 1.5}, "default": 3.0})
    config = SchedulerConfig(Part("fifo"), Part.chain([quotas, Part("accept-all")]), round_s=300.0, name="no")
    (tmp_path / "told.yaml").write_text(told := config.to_yaml(), encoding="utf-8")
    assert SchedulerConfig.from_file(tmp_path / "told.yaml") == config
    assert told.splitlines()[-2:] == ["rounds: 300", "name: 'no'"]


AS_IN_SHOCKWAVE = sorted(name for name in presets() if name.endswith("-as-in-shockwave"))


def test_the_baselines_of_shockwave_have_the_constants_of_its_authors_runs():
    """Allocations are reset after 1,000 s, and half a round of two minutes counts as received from the start."""
    assert {name.removesuffix("-as-in-shockwave") for name in AS_IN_SHOCKWAVE} == {
        "allox", "gandiva-fair", "gavel", "mst", "ossp", "themis",
    }  # fmt: skip
    for name in AS_IN_SHOCKWAVE:
        config = SchedulerConfig.preset(name)
        wanted = {"min_interval_s": 1000, "prior_s": 60, "newcomers": "wait", "lease_s": 120, "types": "in-order"}
        assert (config.mechanism, config.round_s) == (Part("gavel-rounds", wanted), 120.0)
    assert SchedulerConfig.preset("allox-as-in-shockwave").policy == Part("allox", {"alpha": 0.2, "gangs": "share"})
    assert SchedulerConfig.preset("gandiva-fair-as-in-shockwave").policy == Part("proportional"), "no tickets and no trade"


def test_near_names_are_suggested(tmp_path):
    with pytest.raises(UnknownName, match=r"^unknown preset 'tiresia'; did you mean 'tiresias'"):
        SchedulerConfig.preset("tiresia")
    (tmp_path / "mine.yaml").write_text("rounds: 60\npreset: gavvel\n")
    with pytest.raises(UnknownName, match=r"mine\.yaml:2: unknown preset 'gavvel'; did you mean 'gavel'"):
        SchedulerConfig.from_file(tmp_path / "mine.yaml")


def test_who_names_a_preset_as_a_policy_or_a_policy_as_a_preset_is_told_which_it_is():
    with pytest.raises(UnknownName, match=r"^unknown policy 'gavel'; it is a preset: use --preset gavel$"):
        make("policy", Part("gavel"), Registry.installed())
    with pytest.raises(UnknownName, match=r"^unknown preset 'max-min-fairness'; it is a policy: use --policy max-min-"):
        SchedulerConfig.preset("max-min-fairness")
    with pytest.raises(UnknownName, match=r"^unknown placement 'gavel'; known: "):
        make("placement", Part("gavel"), Registry.installed())


def test_a_part_that_nobody_knows_is_told_with_the_presets_line(monkeypatch):
    broken = Preset("broken", "about: x\npaper: y\npolicy: las\nplacement: {name: sprea}\n")
    monkeypatch.setitem(presets(), "broken", broken)
    with pytest.raises(UnknownName, match=r"preset 'broken':4: unknown placement 'sprea'; did you mean 'spread'"):
        SchedulerConfig.preset("broken").build(None)
    monkeypatch.setitem(presets(), "broken", Preset("broken", "about: x\npaper: y\npolicy: {name: las, bye: time}\n"))
    with pytest.raises(InputError, match=r"preset 'broken':3: policy 'las': field 'bye': expected a known parameter"):
        SchedulerConfig.preset("broken").build(None)


def test_a_change_that_is_no_field_is_an_error():
    with pytest.raises(
        InputError, match=r"preset 'las': field 'placemant': expected a known field \(did you mean 'placement'\?\)"
    ):
        SchedulerConfig.preset("las", placemant="spread")
    with pytest.raises(InputError, match=r"field 'rounds' is -1"):
        SchedulerConfig.preset("las", rounds=-1)
    assert preset_named("las").name == "las"
