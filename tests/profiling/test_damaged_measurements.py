"""Files of measurements that somebody else wrote or damaged are refused by the line and the field, never half read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.profiling.results import read_pairs, read_results

ALONE = {"steps_per_s": 8.0, "spread": 0.0, "utilization": 40.0, "memory_utilization": 5.0, "device_memory_mb": 1024.0}
PAIR = {"name": "a + b", "pair": ["a", "b"], "steps_per_s": [4.0, 9.0], "spread": 0.0}


def written(path: Path, *rows: dict[str, Any], about: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in ({"about": about}, *rows)))
    return path


def pairs(path: Path, *pair: dict[str, Any], sharing: object = "time-slicing") -> Path:
    by_themselves = [{"name": name, "alone": name, **ALONE} for name in ("a", "b")]
    return written(path / "pairs.jsonl", *by_themselves, *pair, about={"sharing": sharing})


def test_a_whole_file_of_pairs_is_read(tmp_path):
    assert len(read_pairs(pairs(tmp_path, PAIR, {**PAIR, "windows": [[4.0, 9.0]], "session": 2}))[1]) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("pair", value) for value in (["a"], ["a", "b", "a"], "ab", 5, None, [[], {}])),
        *(("steps_per_s", value) for value in ([0, 0], ["a", "b"], [1], None, [-1, 2], [1e308, 1])),
        *(("undisturbed_steps_per_s", value) for value in ([0, 1], ["a", "b"], [1, 2, 3], None, [1e308, 1], 5)),
        *(("session", value) for value in ("a", [1], 1.5)),
        *(("windows", value) for value in ([[1]], "x", [])),
        *(("spread", "x"), ("sm_active", -5), ("utilization", True)),
    ],
)
def test_a_pair_of_something_else_is_told_by_its_line(tmp_path, field: str, value: object):
    with pytest.raises(InputError) as refused:
        read_pairs(pairs(tmp_path, {**PAIR, field: value}))
    assert (refused.value.line, refused.value.field) == (4, field)


@pytest.mark.parametrize("sharing", [None, "weird", ["mps"]])
def test_how_they_shared_has_to_be_known(tmp_path, sharing: object):
    with pytest.raises(InputError, match="sharing"):
        read_pairs(pairs(tmp_path, PAIR, sharing=sharing))


def test_a_file_without_a_pair_that_was_measured_is_none_of_pairs(tmp_path):
    for row in ([], [{**PAIR, "problem": "too large"}]):
        with pytest.raises(InputError, match="profile pairs"):
            read_pairs(pairs(tmp_path, *row))


def test_who_made_no_steps_by_itself_tells_of_no_slowdown(tmp_path):
    with pytest.raises(InputError) as refused:
        read_pairs(pairs(tmp_path, {"name": "a (2)", "alone": "a", **ALONE, "steps_per_s": 0}, PAIR))
    assert (refused.value.line, refused.value.field) == (4, "steps_per_s")


def test_each_of_a_pair_has_to_be_there_by_itself(tmp_path):
    with pytest.raises(InputError, match="by itself"):
        read_pairs(pairs(tmp_path, {**PAIR, "pair": ["a", "c"]}))
    with pytest.raises(InputError, match="steps_per_s"):
        read_pairs(pairs(tmp_path, {"name": "x", "pair": ["a", "b"]}))


def test_who_was_seen_alone_beside_the_pair_needs_nothing_else(tmp_path):
    seen = {**PAIR, "pair": ["a", "c"], "undisturbed_steps_per_s": [8.0, 9.0]}
    assert len(read_pairs(pairs(tmp_path, {"name": "c", "problem": "too few steps"}, seen))[1]) == 4


@pytest.mark.parametrize("field", ["steps_per_s", "device_memory_mb", "family", "utilization"])
def test_a_table_is_made_of_what_is_whole(tmp_path, field: str):
    row = {"name": "a", "family": "f", **ALONE}
    words = ["profile", "table", "--out", str(tmp_path / "out.csv"), "--alone", str(tmp_path / "alone.jsonl")]
    for damaged in ({k: v for k, v in row.items() if k != field}, {**row, field: [1]}, {**row, field: None}):
        written(tmp_path / "alone.jsonl", damaged, about={"device": "NVIDIA H200"})
        refused = CliRunner().invoke(app, words).exception
        assert isinstance(refused, InputError)
        assert refused.field == field


def test_who_was_measured_in_pairs_and_not_alone_is_told_by_the_file_of_pairs(tmp_path):
    alone = written(tmp_path / "alone.jsonl", {"name": "a", "family": "f", **ALONE}, about={"device": "NVIDIA H200"})
    words = ["profile", "table", "--out", str(tmp_path / "out.csv"), "--alone", str(alone), "--pairs"]
    refused = CliRunner().invoke(app, [*words, str(pairs(tmp_path, PAIR))]).exception
    assert isinstance(refused, InputError)
    assert refused.source == str(tmp_path / "pairs.jsonl")
    assert (refused.field, refused.value) == ("pair", "b")
    assert str(alone) in refused.expected, "where it is missing"


def test_a_device_is_called_by_words(tmp_path):
    with pytest.raises(InputError, match="device"):
        read_results(written(tmp_path / "alone.jsonl", about={"device": 5}))


@pytest.mark.parametrize("name", [" ", "a,b\n", "a b", "8", "a:4"])
def test_a_table_is_of_a_type_that_a_cluster_can_have(tmp_path, name: str):
    refused = CliRunner().invoke(app, ["profile", "table", "--out", str(tmp_path / "out.csv"), "--type", name]).exception
    assert isinstance(refused, InputError)
    assert refused.field == "type"
