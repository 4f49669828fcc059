"""Names that scheduler files, traces, task files, journals, plug-ins and commands used before a rename are still read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.config.parameters import FORMER_PARAMETERS, with_present_names
from fairlead.config.registry import FORMER_GROUPS, FORMER_KINDS, FORMER_NAMES, GROUPS, Registry
from fairlead.config.schedulers import Part, SchedulerConfig, compose, make, scheduler_of
from fairlead.core.errors import InputError, JournalError
from fairlead.core.job import FORMER_FIELDS
from fairlead.engine.codec import decode
from fairlead.estimators.predicted import Monitored
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.workloads.formats import read_trace_file

INSTALLED = Registry.installed()


@pytest.mark.parametrize("what", FORMER_NAMES)
def test_a_part_is_found_by_its_old_name(what):
    assert all(INSTALLED.find(what, old) == INSTALLED.find(what, new) for old, new in FORMER_NAMES[what].items())


def test_a_plug_in_keeps_a_name_that_a_built_in_part_had_before():
    class Turns:
        """My own mechanism."""

    assert INSTALLED.plus("mechanism", "turns", Turns).load("mechanism", "turns") is Turns


def test_a_scheduler_of_an_earlier_version_is_read_and_written_by_todays_names():
    old = {"policy": "horus", "estimation": {"name": "watched", "uses": {"a": [25, 2]}}, "mechanism": "turns"}
    config = SchedulerConfig.from_data(old)
    assert (config.estimator.name, config.mechanism) == ("monitored", Part("gavel-rounds"))
    assert config.to_data()["estimator"] == {"name": "monitored", "usage": {"a": [25, 2]}}
    assert "estimation" not in config.to_data()
    assert type(compose(old).estimator).__name__ == "Monitored"


def test_an_event_with_the_keys_of_two_versions_is_refused():
    with pytest.raises(JournalError, match="not an event"):
        decode('{"e":"node_lost","event":"node_lost","t":1.0,"time":1.0,"node":0}')


def test_on_a_real_cluster_an_estimator_by_its_old_key_is_kept():
    assert scheduler_of({"preset": "las", "estimation": "online"}).estimator == Part("online")


def test_an_old_key_and_the_new_one_at_once_are_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("policy: fifo\nestimator: oracle\nestimation: online\n")
    with pytest.raises(InputError, match=r"mine.yaml:3: field 'estimation': expected only one of 'estimation' and 'estimator'"):
        SchedulerConfig.from_file(path)


def test_plug_ins_of_an_old_group_are_found(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("class Guess:\n    'Mine.'\n")
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{FORMER_GROUPS['estimator']}]\nguess = mine:Guess\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert Registry.from_entry_points().load("estimator", "guess").__name__ == "Guess"


def test_old_kinds_and_groups_are_of_kinds_that_there_are():
    assert set(FORMER_KINDS.values()) | set(FORMER_GROUPS) <= set(GROUPS)


@dataclass(frozen=True)
class Limited:
    """A part whose parameters had other names."""

    max_slowdown: float = 2.0
    account_weights: Mapping[str, float] = field(default_factory=dict)


REGISTRY = INSTALLED.plus("policy", "limited", Limited)


def made(**parameters: Any) -> Any:
    return make("policy", Part("limited", parameters), REGISTRY)


def test_parameters_are_read_by_their_old_names():
    assert made(most_slowdown=1.5, entity_weights={"a": 3}) == Limited(1.5, {"a": 3.0})


def test_an_old_parameter_and_the_new_one_at_once_are_refused():
    with pytest.raises(InputError, match="field 'max_slowdown': expected one value, under either the old or the new name"):
        made(most_slowdown=1.5, max_slowdown=1.5)


def test_a_part_that_has_a_parameter_of_an_old_name_keeps_it():
    for old, new in FORMER_PARAMETERS.items():
        assert with_present_names({old: 1}, {old, new}, str) == {old: 1}
        assert with_present_names({old: 1}, {new}, str) == {new: 1}


FORMER_PARTS = {
    "most_jobs": Part("horus", {"most_jobs": 3}),
    "most_memory": Part("horus", {"most_memory": 0.5}),
    "most_utilization": Part("horus", {"most_utilization": 90.0}),
    "least_gain": Part("gandiva-packing", {"least_gain": 1.5}),
    "least_history": Part("gittins", {"least_history": 7}),
    "deepest": Part("allox", {"deepest": 5}),
    "everybody": Part("optimus", {"everybody": True}),
    "among": Part("max-min-fairness", {"among": "centre"}),
}


@pytest.mark.parametrize("former", FORMER_PARTS)
def test_a_policy_parameter_is_read_by_its_former_name(former):
    part = FORMER_PARTS[former]
    found = make("policy", part, INSTALLED)
    assert getattr(found, FORMER_PARAMETERS[former]) == part.parameters[former]


def test_the_former_name_of_the_default_optimum_is_read():
    assert make("policy", Part("max-min-fairness", {"among": "most"}), INSTALLED).optimum == "throughput"


def test_mechanism_parameters_are_read_by_their_former_names():
    found = make("mechanism", Part("gavel-rounds", {"least_interval_s": 60.0, "leftovers": False}), INSTALLED)
    assert (found.min_interval_s, found.work_conserving) == (60.0, False)


def test_an_estimator_parameter_is_read_by_its_former_name():
    given = {"uses": {"a": (50.0, 2.0)}, "holds": {"a": (20.0, 30.0)}}
    found = make("estimator", Part("predicted", given), INSTALLED, {"table": None})
    assert (found.usage, found.sm_usage) == (given["uses"], given["holds"])
    assert make("estimator", Part("online", {"company": 0.5}), INSTALLED, {"table": None}).colocated == 0.5
    assert type(make("estimator", Part("watched"), INSTALLED)) is Monitored


def test_a_parameter_cannot_have_its_former_and_its_present_name_at_once():
    with pytest.raises(InputError, match="field 'max_jobs': expected one value"):
        make("policy", Part("horus", {"max_jobs": 3, "most_jobs": 3}), INSTALLED)


def test_an_unknown_parameter_is_reported_by_the_name_that_was_given():
    with pytest.raises(InputError, match="field 'most_jobs': expected a known parameter"):
        make("policy", Part("fifo", {"most_jobs": 3}), INSTALLED)


def test_a_trace_column_is_read_by_its_former_name(tmp_path):
    (tmp_path / "trace.csv").write_text("submitted_s,duration_s,most_slowdown\n0,60,1.5\n")
    assert read_trace_file(tmp_path / "trace.csv").jobs[0].max_slowdown == 1.5


def test_a_task_field_is_read_by_its_former_name():
    assert TaskSpec.model_validate({"run": "x", "most_slowdown": 1.5}).max_slowdown == 1.5
    with pytest.raises(ValueError, match="most_slowdown is another name of max_slowdown"):
        TaskSpec.model_validate({"run": "x", "most_slowdown": 1.5, "max_slowdown": 1.5})


def test_a_journal_is_read_by_the_former_names_of_job_fields():
    event = decode(b'{"e":"submitted","t":0.0,"n":0,"job":{"name":"a","most_slowdown":1.5}}')
    assert event.job.max_slowdown == 1.5
    assert "most_slowdown" in FORMER_FIELDS
