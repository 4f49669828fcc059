"""What an error says, and that it survives the way back from another process."""

from __future__ import annotations

import copy
import pickle

import pytest

from fairlead.core.errors import (
    DuplicateName,
    FairleadError,
    IllegalTransition,
    InputError,
    InvalidPlan,
    JournalError,
    StaleSnapshot,
    UnknownName,
)


def test_an_input_error_names_file_line_field_value_and_what_was_expected():
    error = InputError("jobs.csv", "a whole number", line=17, field="workers", value="1.5")
    assert str(error) == "jobs.csv:17: field 'workers' is '1.5': expected a whole number"
    assert (error.source, error.line, error.field, error.value) == ("jobs.csv", 17, "workers", "1.5")


def test_what_is_not_known_about_an_error_is_left_out_of_its_text():
    assert str(InputError("x.yaml", "a mapping")) == "x.yaml: expected a mapping"
    assert str(InputError("x.yaml", "a mapping", line=3)) == "x.yaml:3: expected a mapping"
    assert str(InputError("x.yaml", "a value", field="type")) == "x.yaml: field 'type': expected a value"


def test_a_long_value_is_shortened_in_the_text_and_kept_in_the_error():
    error = InputError("x", "less", field="f", value="a" * 500)
    assert len(str(error)) < 120
    assert "…" in str(error)
    assert error.value == "a" * 500


def test_an_unknown_name_is_answered_with_the_near_ones():
    error = UnknownName("policy", "las2", ["fifo", "las", "las-het", "srtf"])
    assert str(error) == "unknown policy 'las2'; did you mean 'las' or 'las-het'?"


def test_a_name_that_is_part_of_a_known_one_counts_as_near():
    assert "did you mean 'largest-first-of-all'" in str(UnknownName("policy", "first", ["largest-first-of-all", "fifo"]))


@pytest.mark.parametrize("name", ["zzzzzz", ""])
def test_a_name_near_to_nothing_is_answered_with_all_there_is(name):
    assert str(UnknownName("policy", name, ["srtf", "fifo"])) == f"unknown policy '{name}'; known: fifo, srtf"


@pytest.mark.parametrize(
    "error",
    [
        InputError("jobs.csv", "a number", line=3, field="steps", value="x"),
        InputError("jobs.csv", "a number"),
        UnknownName("policy", "fifa", ["fifo", "las"]),
        UnknownName("policy", "gavel", ["fifo", "las"], instead="it is a preset"),
        DuplicateName("policy 'x' is defined by a and by b"),
        IllegalTransition("job 'a' cannot go from finished to running"),
        InvalidPlan("an accelerator twice"),
        StaleSnapshot("column 'held' was read too late"),
        JournalError("x.jsonl:3: not an event"),
    ],
)
def test_an_error_survives_the_way_between_processes(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)
        assert isinstance(again, FairleadError)


def test_a_value_that_cannot_be_shown_is_told_all_the_same():
    for value in (10**5000, [10**5000]):
        assert "too large to show" in str(InputError("x.yaml", "a number", field="steps", value=value))
