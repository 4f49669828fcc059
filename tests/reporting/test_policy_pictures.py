"""docs/reference/policies.md describes every policy that ships with Fairlead; the script that draws its pictures works."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import struct
import sys
from pathlib import Path

import pytest

from fairlead.config.registry import Registry

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "reference" / "policies.md").read_text(encoding="utf-8")
BUILT_IN = [entry.name for entry in Registry.installed().of("policy") if entry.origin == "fairlead"]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("make_policy_pictures", DOCS / "make_policy_pictures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def size_of(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_has_a_heading_its_figures_and_its_picture(name):
    assert f"\n### {name}\n" in PAGE, "run `make pictures`, and write about it"
    assert f"| `{name}` |" in PAGE, "run `make pictures`"
    assert f"](../img/policies/{name}.png)" in PAGE
    assert size_of(DOCS / "img" / "policies" / f"{name}.png") == (600, 220)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_parameters_of_a_policy_are_in_its_section(name):
    section = PAGE.partition(f"\n### {name}\n")[2].partition("\n##")[0]
    for field in dataclasses.fields(Registry.installed().load("policy", name)):
        assert f"`{field.name}`" in section or not field.init, f"{name} says nothing of {field.name}"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_policy_has_a_formula_its_use_its_limits_and_its_source(name):
    section = PAGE.partition(f"\n### {name}\n")[2].partition("\n##")[0]
    assert re.match(r"\n[A-Z][^\n]*\n(?:[^\n]+\n)*\n```text\n", section), "a sentence, then a formula"
    for word in ("**Use it**", "**Do not use it**", "**Source**"):
        assert word in section


def test_there_is_no_picture_too_many_and_they_are_small():
    pictures = list((DOCS / "img" / "policies").glob("*.png"))
    assert {path.stem for path in pictures} == set(BUILT_IN)
    assert sum(path.stat().st_size for path in pictures) < 1.5e6


@pytest.mark.parametrize("name", ["las", "gandiva-packing", "static-partition"])
def test_a_picture_is_drawn(script, name, tmp_path):
    shown = script.run(name)
    assert shown.summary.finished == 10
    assert size_of(script.draw(shown, tmp_path)) == script.SIZE_PX
    assert f"| `{name}` |" in script.table([shown])


def test_the_metrics_on_the_page_are_current(script):
    """All of them: a change in how ties are broken can move any."""
    written = PAGE.partition(script.BEGIN)[2].partition(script.END)[0]
    assert script.table([script.run(name) for name in BUILT_IN]) in written, "run `make pictures`"
