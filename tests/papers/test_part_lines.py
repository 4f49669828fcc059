"""Lines of code: what counts as one, and that parts and presets add up."""

from __future__ import annotations

from fairlead.config.registry import presets
from fairlead_papers.part_lines import BLOX, code_lines, part_lines, preset_lines

SOURCE = '''\
"""A module."""

import math  # a comment does not make a line, code before it does

# nor does this
TEXT = """two
lines"""


class Thing:
    """Says something.

    And more."""

    size: int = 3
    """What a size is."""

    def area(self) -> float:
        return (
            self.size
            * math.pi
        )
'''


def test_blank_lines_comments_and_docstrings_are_no_code():
    assert sorted(code_lines(SOURCE)) == [3, 6, 7, 10, 15, 18, 19, 20, 21, 22]


def test_a_part_is_its_class_its_module_and_what_that_builds_upon():
    parts = {(part.what, part.name): part for part in part_lines()}
    assert all(0 < part.own <= part.module <= part.whole for part in parts.values())
    fifo, both = parts["policy", "fifo"], parts["policy", "fifo-priority"]
    assert (fifo.module, fifo.whole) == (both.module, both.module)
    assert fifo.own < fifo.module
    assert parts["placement", "spread"].whole > 2 * parts["placement", "spread"].module  # packing is shared


def test_a_preset_is_what_it_adds_to_fifo():
    found = {preset.name: preset for preset in preset_lines()}
    assert found.keys() == presets().keys()
    assert (found["fifo"].code, found["fifo"].modules) == (0, ())
    assert found["las"].modules == ("fairlead.policies.ranking.las",)
    assert set(found["las-accept-1.2x"].modules) == {"fairlead.policies.ranking.las"}
    assert "fairlead.policies.allocation.mechanism.round_mechanism" in found["gavel"].modules
    for name, module in (
        ("optimus", "models.goodput"),
        ("pollux", "workloads.applications"),
        ("synergy", "models.sensitivity"),
    ):
        assert f"fairlead.{module}" in found[name].modules, "what serves a scheduler alone counts wherever it stands"
    assert "fairlead.workloads.applications" not in found["optimus"].modules
    assert (found["las"].blox, found["srtf"].blox) == (BLOX["las"], None)
    assert all(5 <= preset.yaml <= 14 for preset in found.values())
