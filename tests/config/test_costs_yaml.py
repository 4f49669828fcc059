"""Costs in YAML: one value for all, others for some kinds or models."""

from __future__ import annotations

import math

import pytest

from fairlead.config.workload_files import read_costs
from fairlead.core.errors import InputError
from fairlead.simulator.costs import Costs

WHOLE = """\
launch_s: 10
restart_s: 30
checkpoint_s: 5
checkpoint_every_s: 1800
rack_speed: 0.9
kinds:
  ResNet-50: {restart_s: 60, rack_speed: 0.5}
  Transformer (batch size 64): {checkpoint_s: 20, checkpoint_every_s: 60}
"""


def test_kinds_differ_from_the_rest_only_in_what_is_said_about_them(tmp_path):
    path = tmp_path / "costs.yaml"
    path.write_text(WHOLE)
    costs = read_costs(path)
    assert (costs.launch_s, costs.restart_s, costs.checkpoint_s, costs.checkpoint_every_s) == (10.0, 30.0, 5.0, 1800.0)
    assert costs.of("ResNet-50 (batch size 32)") == costs.of("ResNet-50") == Costs(10.0, 60.0, 5.0, 1800.0, rack_speed=0.5)
    assert costs.of("Transformer (batch size 64)") == Costs(10.0, 30.0, 20.0, 60.0, rack_speed=0.9)
    assert costs.of("Transformer (batch size 32)") == costs


def test_what_is_not_said_costs_nothing(tmp_path):
    path = tmp_path / "costs.yaml"
    path.write_text("restart_s: 7\n")
    assert read_costs(path) == Costs(0.0, 7.0, 0.0, math.inf)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("restart: 7\n", r"costs\.yaml:1: field 'restart': expected a known field \(did you mean 'restart_s'"),
        ("restart_s: -7\n", r"costs\.yaml:1: field 'restart_s' is -7: expected seconds from 0 to 1e.09"),
        ("checkpoint_every_s: 0\n", r"costs\.yaml:1: field 'checkpoint_every_s' is 0: expected seconds above 0"),
        ("rack_speed: 1.5\n", r"costs\.yaml:1: field 'rack_speed' is 1\.5: expected a fraction of the rate, from 0\.001 to 1"),
        ("launch_s: soon\n", r"costs\.yaml:1: field 'launch_s' is 'soon': expected seconds from 0 to 1e.09"),
        ("kinds:\n  LM: 7\n", r"costs\.yaml:2: field 'LM' is 7: expected a mapping"),
        ("kinds:\n  LM: {restart: 7}\n", r"costs\.yaml:2: field 'restart': expected a known field"),
    ],
)
def test_a_wrong_file_is_told_with_line_field_value_and_mend(tmp_path, text, said):
    path = tmp_path / "costs.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_costs(path)
