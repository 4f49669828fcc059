"""Names that scheduler files, traces, task files and journals used before a rename are still read."""

from __future__ import annotations

import pytest

from fairlead.config.parameters import FORMER_PARAMETERS
from fairlead.config.registry import Registry
from fairlead.config.schedulers import Part, make
from fairlead.core.errors import InputError
from fairlead.core.job import FORMER_FIELDS
from fairlead.engine.codec import decode
from fairlead.estimators.predicted import Monitored
from fairlead.runtime.protocol.task_file import TaskSpec
from fairlead.workloads.formats import read_trace_file

FORMER_PARTS = {
    "most_jobs": Part("horus", {"most_jobs": 3}),
    "most_memory": Part("horus", {"most_memory": 0.5}),
    "most_utilization": Part("horus", {"most_utilization": 90.0}),
    "least_gain": Part("gandiva-packing", {"least_gain": 1.5}),
}


@pytest.mark.parametrize("former", FORMER_PARTS)
def test_a_policy_parameter_is_read_by_its_former_name(former):
    part = FORMER_PARTS[former]
    made = make("policy", part, Registry.installed())
    assert getattr(made, FORMER_PARAMETERS[former]) == part.parameters[former]


def test_an_estimator_parameter_is_read_by_its_former_name():
    given = {"uses": {"a": (50.0, 2.0)}, "holds": {"a": (20.0, 30.0)}}
    made = make("estimator", Part("predicted", given), Registry.installed(), {"table": None})
    assert (made.usage, made.sm_usage) == (given["uses"], given["holds"])
    assert make("estimator", Part("online", {"company": 0.5}), Registry.installed(), {"table": None}).colocated == 0.5
    assert type(make("estimator", Part("watched"), Registry.installed())) is Monitored


def test_a_parameter_cannot_have_its_former_and_its_present_name_at_once():
    with pytest.raises(InputError, match="field 'max_jobs': expected one value"):
        make("policy", Part("horus", {"max_jobs": 3, "most_jobs": 3}), Registry.installed())


def test_an_unknown_parameter_is_reported_by_the_name_that_was_given():
    with pytest.raises(InputError, match="field 'most_jobs': expected a parameter it has"):
        make("policy", Part("fifo", {"most_jobs": 3}), Registry.installed())


def test_a_trace_column_is_read_by_its_former_name(tmp_path):
    (tmp_path / "trace.csv").write_text("submitted_s,duration_s,most_slowdown\n0,60,1.5\n")
    assert read_trace_file(tmp_path / "trace.csv").jobs[0].max_slowdown == 1.5


def test_a_task_field_is_read_by_its_former_name():
    assert TaskSpec.model_validate({"run": "x", "most_slowdown": 1.5}).max_slowdown == 1.5
    with pytest.raises(ValueError, match="most_slowdown is the former name of max_slowdown"):
        TaskSpec.model_validate({"run": "x", "most_slowdown": 1.5, "max_slowdown": 1.5})


def test_a_journal_is_read_by_the_former_names_of_job_fields():
    event = decode(b'{"e":"submitted","t":0.0,"n":0,"job":{"name":"a","most_slowdown":1.5}}')
    assert event.job.max_slowdown == 1.5
    assert "most_slowdown" in FORMER_FIELDS
