"""A predictor that has not seen some families: what it learns from, and the one that ships for Horus' studies."""

from __future__ import annotations

from cli.command import fairlead
from fairlead.prediction.fit_predictor import dataset, without_families
from fairlead.prediction.measured_profiles import shipped_profiles
from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.results import measured_set

DATA, KNOWN = dataset(measured_set()[1], measured_set("h200_features")[1]), shipped_profiles()
FAMILY = {name: one.family for name, one in KNOWN.alone.items()}


def test_neither_rows_nor_pairs_of_a_family_that_is_left_out_are_learned_from():
    data, pairs = without_families(DATA, KNOWN.pairs, {"vgg", "unet"}, FAMILY)
    assert {"vgg", "unet"} == set(DATA.families) - set(data.families)
    assert len(data) == sum(family not in ("vgg", "unet") for family in DATA.families)
    met = {FAMILY[name] for found in pairs.values() for pair in found for name in pair}
    assert met
    assert met.isdisjoint({"vgg", "unet"})


def test_the_one_that_ships_names_half_of_the_paired_families_and_learned_from_no_pair_of_theirs():
    about = shipped_predictor("h200_half").about
    without = set(about["without"].split(", "))
    paired = {FAMILY[name] for name in KNOWN.paired()}
    assert without <= paired
    assert len(without) * 2 >= len(paired)
    _, pairs = without_families(DATA, KNOWN.pairs, without, FAMILY)
    assert f"time-slicing {len({frozenset(pair) for pair in pairs['time-slicing']})}" in about["pairs"]


def test_a_family_that_nobody_knows_is_told():
    told = fairlead("predict", "train", "--out", "/nowhere/p.json", "--without", "vgc")
    assert told.returncode == 2
    assert "vgg" in told.stderr
