"""Files of inference sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.config.workload_files import read_sessions, sessions_from
from fairlead.config.yaml_source import parse_yaml
from fairlead.core.errors import InputError

GOOD = """models:
  resnet:
    batches: [1, 3]
    latency_ms: {V100: [6, 10]}
sessions:
  - {name: photos, model: resnet, rate: 900, slo_ms: 100}
  - name: doors
    model: resnet
    rate: 0.5
    slo_ms: 50
"""


def test_a_file_gives_sessions_in_seconds():
    photos, doors = sessions_from(parse_yaml(GOOD, "sessions.yaml"))
    assert (photos.name, photos.rate, photos.slo_s) == ("photos", 900.0, 0.1)
    assert photos.latency_s["v100"] == pytest.approx([0.006, 0.008, 0.010])
    assert (doors.name, doors.rate) == ("doors", 0.5)


def test_the_example_can_be_read():
    assert len(read_sessions(Path(__file__).resolve().parents[2] / "examples" / "sessions.yaml")) == 5


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("rate: 900", "rate: -1", "sessions.yaml:6: field 'rate' is -1: expected requests per second above 0"),
        ("rate: 0.5", "rate: 2000000", "sessions.yaml:9: field 'rate'.*at most 1,000,000 requests per second"),
        ("    slo_ms: 50\n", "", "sessions.yaml:7: field 'slo_ms': expected a value"),
        ("slo_ms: 100", "slo: 100", "sessions.yaml:6: field 'slo': expected a known field .did you mean 'slo_ms'"),
        ("model: resnet,", "model: resnett,", "sessions.yaml:6: field 'model' is 'resnett'.*did you mean 'resnet'"),
        ("name: doors", "name: photos", "sessions.yaml:7: .*'photos' occurs twice"),
        ("[1, 3]", "[3, 1]", "sessions.yaml:3: field 'batches'.*ascending order"),
        ("[1, 3]", "[1, 9999]", "sessions.yaml:3: field 'batches'.*at most 4096"),
        ("[6, 10]", "[6]", "sessions.yaml:4: field 'V100' is .*expected 2 latencies"),
        ("[6, 10]", "[6, 0]", "sessions.yaml:4: field 'V100.1.' is 0: expected milliseconds above 0"),
        ("{V100: [6, 10]}", "{}", "sessions.yaml:4: field 'latency_ms'.*at least one type"),
        ("{V100: [6, 10]}", "{V100: [6, 10], v100: [1, 2]}", "sessions.yaml:4: field 'v100' is .*expected each type only once"),
        ("models:", "model:", "sessions.yaml:1: field 'model': expected a known field"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(before, after, told):
    assert before in GOOD
    with pytest.raises(InputError, match=told):
        sessions_from(parse_yaml(GOOD.replace(before, after), "sessions.yaml"))


def test_a_file_without_sessions_says_so():
    with pytest.raises(InputError, match="field 'sessions'"):
        sessions_from(parse_yaml(GOOD.partition("sessions:")[0], "sessions.yaml"))
    with pytest.raises(InputError, match="at least one session"):
        sessions_from(parse_yaml(GOOD.partition("sessions:")[0] + "sessions: []\n", "sessions.yaml"))
