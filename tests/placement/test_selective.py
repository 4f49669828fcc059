"""Tiresias and Tiresias+: who is consolidated and who fills fragments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.core import events as ev
from fairlead.core.cluster import Cluster
from fairlead.core.errors import InputError
from fairlead.core.job import Job, model_of
from fairlead.core.plan import RoundPlan
from fairlead.engine.apply import apply_event
from fairlead.placement.tiresias_placement import SKEW, TiresiasPlacement, TiresiasPlusPlacement
from fairlead.workloads.catalogue import catalogue
from scenes import places_in, selection_of, state_of, table_of, view_of

CLUSTER = Cluster.parse("12xv100:4")
TAKEN = {0: [0, 1, 2], 1: [4, 5, 6]}  # nodes 0 and 1 have one accelerator left, node 2 has four
RATES = {("VGG-16", 2): (10.0,), ("ResNet-50", 2): (10.0,), ("stuck", 2): (10.0,)}
TABLE = table_of(("v100",), RATES, spread=np.array([[1.0], [4.0], [9.5], [0.0]]))


def nodes_of(places) -> list[int]:
    return [int(CLUSTER.node_of[place]) for place in places]


def placed_beside(placement, *kinds: str, workers: int = 2, taken=TAKEN):
    old = [Job(f"old-{n}", workers=len(at)) for n, at in taken.items()]
    jobs = [*old, *(Job(f"new-{i}", kind=kind, workers=workers) for i, kind in enumerate(kinds))]
    state = state_of(CLUSTER, jobs, taken)
    selection = selection_of(range(len(jobs)), [0] * len(jobs), [job.workers for job in jobs])
    placed = placement.place(selection, view_of(state, table=TABLE))
    assert placed.kept.tolist() == list(taken)
    return placed, {n - len(old): at for n, at in places_in(placed).items()}


@pytest.mark.parametrize("placement", [TiresiasPlacement(), TiresiasPlusPlacement()], ids=["by skew", "by profile"])
def test_who_gains_stands_together_and_the_others_fill_fragments(placement):
    _, places = placed_beside(placement, "ResNet-50", "VGG-16")
    assert nodes_of(places[0]) == [0, 1]
    assert nodes_of(places[1]) == [2, 2]


def test_who_gains_goes_first_even_where_the_others_are_larger():
    jobs = [Job("skewed", kind="VGG-16", workers=3), Job("wide", kind="ResNet-50", workers=4)]
    state = state_of(CLUSTER, jobs, {0: [0, 1, 2]})
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, suspended=np.array([0]))))
    places = places_in(TiresiasPlacement().place(selection_of([1, 0], [0, 0], [4, 3]), view_of(state, 20.0)))
    assert nodes_of(places[0]) == [0, 0, 0]  # where it was, before the other takes the first whole node
    assert nodes_of(places[1]) == [0, 1, 1, 1]


def test_fragments_are_filled_from_the_node_with_the_least_left_and_whole_nodes_stay_free():
    _, places = placed_beside(TiresiasPlacement(), "ResNet-50", workers=3)
    assert nodes_of(places[0]) == [0, 1, 2]
    _, places = placed_beside(TiresiasPlacement(), "ResNet-50", taken={0: [0, 1], 1: [4, 5, 6]})
    assert nodes_of(places[0]) == [0, 1]


def test_the_threshold_and_the_skews_are_parameters():
    assert nodes_of(placed_beside(TiresiasPlacement(threshold=0.05), "ResNet-50")[1][0]) == [2, 2]
    assert nodes_of(placed_beside(TiresiasPlacement(threshold=0.9), "VGG-16")[1][0]) == [0, 1]
    assert nodes_of(placed_beside(TiresiasPlacement(skews={"ResNet-50": 0.8}), "ResNet-50")[1][0]) == [2, 2]
    assert nodes_of(placed_beside(TiresiasPlacement(otherwise=0.8), "stuck")[1][0]) == [2, 2]


def test_a_skew_is_that_of_the_kind_of_its_model_or_of_all_others():
    known = TiresiasPlacement(skews={"VGG-16 (batch size 32)": 0.1, "mine": 0.4}, otherwise=0.25)
    assert known.skew("VGG-16 (batch size 32)") == 0.1
    assert known.skew("VGG-16 (batch size 64)") == SKEW["VGG-16"]
    assert known.skew("mine (batch size 8)") == 0.4
    assert known.skew("theirs") == 0.25


def test_every_model_of_the_catalogue_has_a_skew():
    assert {model_of(kind) for kind in catalogue().kinds if kind} <= SKEW.keys()


def test_by_profile_a_gang_is_consolidated_from_the_threshold_on():
    assert nodes_of(placed_beside(TiresiasPlusPlacement(threshold=0.04), "ResNet-50")[1][0]) == [2, 2]
    assert nodes_of(placed_beside(TiresiasPlusPlacement(threshold=2.0), "VGG-16")[1][0]) == [0, 1]


NO_NODE = {0: [0, 1, 2], 1: [4, 5, 6], 2: [8, 9, 10]}


def test_where_nobody_fits_together_whoever_rather_waits_does():
    for placement in (TiresiasPlacement(), TiresiasPlusPlacement()):
        assert len(set(nodes_of(placed_beside(placement, "VGG-16", taken=NO_NODE)[1][0]))) == 2
    for placement in (TiresiasPlacement(wait=True), TiresiasPlusPlacement(wait=True)):
        placed, places = placed_beside(placement, "VGG-16", "ResNet-50", taken=NO_NODE)
        assert list(places) == [1]
        assert len(placed.unplaced) == 1


def test_a_gang_that_does_not_run_spread_waits_in_any_case():
    placed, places = placed_beside(TiresiasPlusPlacement(), "stuck", taken=NO_NODE)
    assert not places
    assert "as it needs them" in str(placed.unplaced[3])


def test_who_stands_together_returns_to_its_last_node():
    jobs = [Job("skewed", kind="VGG-16", workers=2), Job("other", workers=3)]
    state = state_of(CLUSTER, jobs, {0: [8, 9], 1: [0, 1, 2]})
    apply_event(state, ev.RoundPlanned(RoundPlan(10.0, suspended=np.array([0]))))
    placed = TiresiasPlacement().place(selection_of([0, 1], [0, 0], [2, 3]), view_of(state, 20.0))
    assert nodes_of(places_in(placed)[0]) == [2, 2]


def test_parameters_out_of_range_are_told():
    with pytest.raises(InputError, match=r"placement tiresias: field 'threshold' is 1.5: expected a number from 0 to 1"):
        TiresiasPlacement(threshold=1.5)
    with pytest.raises(InputError, match=r"field 'skews.LM' is -1: expected a number from 0 to 1"):
        TiresiasPlacement(skews={"LM": -1})
    with pytest.raises(InputError, match=r"field 'skews.threshold' is 7"):  # a model of that name
        TiresiasPlacement(skews={"threshold": 7})
    with pytest.raises(InputError, match=r"placement tiresias-plus: field 'threshold' is nan: expected a number of at least 0"):
        TiresiasPlusPlacement(threshold=math.nan)
