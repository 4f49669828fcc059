"""Pairs of trainings of the list."""

from __future__ import annotations

import pytest

from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.profile_pairs import TOO_FEW, PairTiming
from fairlead.profiling.results import read_pairs
from fairlead.profiling.sharing_mode import SharingMode
from fairlead_papers.measured_data import evaluation_set

pytest.importorskip("torch")

from fairlead_papers.prediction import measure_step_pairs
from fairlead_papers.prediction.evaluate_step_pairs import PAIRS, fit_to_both, scores, shipped_pairs, step_pairs
from fairlead_papers.prediction.measure_step_pairs import PAIRED, measure_pairs
from fairlead_papers.prediction.trainings import entries

pytestmark = pytest.mark.long


def test_pairs_run_in_two_processes_and_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(measure_step_pairs, "run_apart", lambda *_, **__: {"host_cpus": "1"})
    names = ("mlp-64@16:4/fp32",)
    for longer in (1, 5, 25):  # of a busy machine a short look may tell too little
        to = tmp_path / f"pairs-{longer}.jsonl"
        timing = PairTiming(warm_s=0.05, alone_s=0.2 * longer, window_s=0.3 * longer, repetitions=1)
        for _ in range(2):
            kept = measure_pairs(names, to, SharingMode.TIME_SLICING, 600.0, "cpu", timing).known.values()
        if TOO_FEW not in [row.get("problem") for row in kept]:
            break
    about, rows = read_pairs(to)
    assert about["sharing"] == "time-slicing"
    assert [row["name"] for row in rows] == [names[0], f"{names[0]} + {names[0]}"]
    assert min(rows[1]["steps_per_s"] + rows[1]["undisturbed_steps_per_s"]) > 0


def test_the_trainings_of_pairs_span_utilization_and_families():
    about, rows = evaluation_set("h200_steps")
    assert about["device"] == "NVIDIA H200"
    measured = {row["name"]: row for row in rows}
    assert {one.name for one in entries()} == measured.keys()
    assert not [row for row in rows if "problem" in row]
    utilization = [measured[name]["utilization"] for name in PAIRED]
    assert utilization == sorted(utilization)
    assert utilization[-1] - utilization[0] > 75
    assert len({measured[name]["family"] for name in PAIRED}) == len(PAIRED)


@pytest.mark.parametrize(("name", "sharing"), [("h200_step_pairs", "time-slicing"), ("h200_step_pairs_mps", "mps")])
def test_at_least_120_pairs_were_measured(name, sharing):
    about, rows = evaluation_set(name)
    pairs = {tuple(row["pair"]) for row in rows if "pair" in row and "problem" not in row}
    assert about["sharing"] == sharing
    assert len(pairs) >= 120
    assert {each for pair in pairs for each in pair} == {*PAIRED}


@pytest.mark.parametrize("sharing", PAIRS)
def test_shipped_slowdowns_are_the_fit_to_all_pairs(sharing):
    found, shipped = fit_to_both(sharing), shipped_predictor().slowdown[sharing]
    assert found.below == pytest.approx(shipped.below, rel=1e-6)
    assert found.above == pytest.approx(shipped.above, rel=1e-6)


def test_slowdowns_of_left_out_families_are_predicted():
    old, new = shipped_pairs("time-slicing"), step_pairs("time-slicing")
    measured, predicted = scores((old, new), new)
    assert measured >= 0.78
    assert predicted >= 0.6
    assert scores((old, new), old)[0] >= scores((old,), old)[0]
