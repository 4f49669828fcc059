"""Pairs that no fit has seen, beside what is predicted of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.prediction import learners
from fairlead.prediction.measured_profiles import (
    InterferenceModel,
    MultiprocessorUse,
    multiprocessor_use,
    paired_sets,
    profiles_of,
)
from fairlead.prediction.predictor import shipped_predictor
from fairlead.profiling.results import MEASURED
from fairlead_papers.measured_data import DATA, evaluation_set
from fairlead_papers.prediction.unseen_pairs import Belief, Pair, ends, errors, foremost, in_order, seen

UNSEEN = DATA / "h200_unseen_pairs.jsonl"


def test_those_that_cost_least_come_first_and_memory_is_half_of_the_cost():
    known = {"light": Belief(20.0, 1000.0), "large": Belief(20.0, 60_000.0), "heavy": Belief(95.0, 1000.0)}
    pairs = {(a, b): (1.0, 2.0) for a in known for b in known}
    ranked = in_order(pairs, known, InterferenceModel.fitted(shipped_predictor(), "time-slicing"), 100_000.0)
    assert len(ranked) == 6
    assert ranked[0].names == ("light", "light")
    cost = {pair.names: pair.cost for pair in ranked}
    assert cost["large", "light"] - cost["light", "light"] == pytest.approx(0.5 * 0.59)
    assert cost["large", "large"] == pytest.approx(0.5 + cost["light", "light"] - 0.5 * 0.02), (
        "more than all of it is all of it"
    )
    assert not any(pair.finer for pair in ranked)


def test_what_is_held_counts_where_it_is_known_of_both():
    known = {
        "small": Belief(98.0, 1.0, MultiprocessorUse(15.0, 1e-5)),
        "full": Belief(98.0, 1.0, MultiprocessorUse(85.0, 1e-5)),
        "other": Belief(98.0, 1.0),
    }
    pairs = {(a, b): (1.0, 1.0) for a in known for b in known}
    found = {pair.names: pair for pair in in_order(pairs, known, InterferenceModel.fitted(shipped_predictor(), "mps"), 1e5)}
    assert found["full", "small"].finer
    assert found["full", "small"].predicted[0] < found["full", "small"].predicted[1]
    assert not found["other", "small"].finer


def test_those_shown_are_of_different_trainings_and_of_none_too_often():
    names = [("a", "a"), ("a", "b"), ("a", "c"), ("a", "d"), ("b", "d"), ("b", "e"), ("e", "f")]
    ranked = [Pair(pair, (Belief(1, 1), Belief(1, 1)), (1.0, 1.0), (1.0, 1.0), 0.0, False) for pair in names]
    assert [pair.names for pair in foremost(ranked, 4)] == [("a", "b"), ("a", "c"), ("b", "d"), ("e", "f")]
    assert [pair.names for pair in foremost(ranked, 1)] == [("a", "b")]


def test_two_alike_are_shown_apart_at_both_ends_of_their_own_order():
    names = [("a", "a"), ("a", "b"), ("b", "b"), ("b", "c"), ("c", "c"), ("c", "d"), ("d", "d")]
    ranked = [
        Pair(pair, (Belief(1, 1), Belief(1, 1)), (1.0, 1.0), (1.0, 1.0), float(at), False) for at, pair in enumerate(names)
    ]
    shown = {end: ["".join(pair.names) for pair in pairs] for end, pairs in ends(ranked, 2).items()}
    assert shown == {
        "advised": ["ab", "bc"],
        "advised against": ["cd"],
        "advised alike": ["aa", "bb"],
        "against alike": ["dd", "cc"],
    }
    few = {end: ["".join(pair.names) for pair in pairs] for end, pairs in ends(ranked[:3], 2).items()}
    assert few["advised alike"] == ["aa", "bb"], "each at one end only"
    assert few["against alike"] == []


def test_errors_count_a_pair_of_likes_once():
    both = (Belief(1, 1), Belief(1, 1))
    pairs = [
        Pair(("a", "a"), both, (1.0, 1.0), (1.0, 2.0), 0.0, False),
        Pair(("a", "b"), both, (2.0, 3.0), (2.0, 3.0), 0.0, False),
    ]
    off, score = errors(pairs)
    assert off == pytest.approx(0.5 / 3)
    assert score == pytest.approx(1 - 0.25 / np.var([1.5, 2.0, 3.0]) / 3)


@pytest.mark.parametrize(("name", "least"), [("h200_unseen_ten", 0.9), ("h200_unseen_ten_mps", 0.74)])
def test_slowdowns_of_ten_families_that_met_nobody_before_are_told(name, least):
    """One configuration of each of ten families, none of which is in a set that slowdowns were fitted to."""
    about, rows = evaluation_set(name)
    found = profiles_of(evaluation_set("h200"), {name: (about, rows)}, "h200")
    ((sharing, pairs),) = found.pairs.items()
    fitted_to = {each for one in paired_sets("h200") for row in evaluation_set(one)[1] for each in row.get("pair", ())}
    names = {each for pair in pairs for each in pair}
    assert len(names) == len({found.alone[each].family for each in names}) == 10
    assert not names & fitted_to
    counted = {row["alone"]: row["sm_active"] for row in rows if "alone" in row}
    held = {each: MultiprocessorUse(counted[each], multiprocessor_use()[each].kernel_s) for each in names}
    ranked = in_order(pairs, seen(found.alone, held), InterferenceModel.fitted(shipped_predictor(), sharing), 141 * 1024.0)
    assert len(ranked) == 55
    off, score = errors(ranked)
    assert score > least
    assert off < 0.16


def test_the_command_puts_predicted_and_measured_side_by_side(tmp_path):
    said = CliRunner().invoke(app, ["predict", "pairs", str(UNSEEN), "--learner", "linear", "--json"], catch_exceptions=False)
    told = json.loads(said.stdout)
    assert len(told["pairs"]) == 18
    assert told["r_squared"] > 0.5
    assert len(told["advised"]) == len(told["advised_against"]) == 3
    assert max(sum(pair["measured"]) for pair in told["advised"]) < min(
        sum(pair["measured"]) for pair in told["advised_against"]
    )
    text = CliRunner().invoke(app, ["predict", "pairs", str(UNSEEN), "--learner", "linear", "--show", "1"]).stdout
    shown = ("advised  ", "advised against", "advised alike  ", "against alike  ")
    assert [line.startswith(end) for line, end in zip(text.splitlines(), shown, strict=True)] == [True] * 4
    assert [len({*pair["pair"]}) for end in ("advised_alike", "against_alike") for pair in told[end]] == [1] * 6
    assert told["with_measured_inputs"]["r_squared"] > 0.8
    lost = tmp_path / "none.jsonl"
    for words, field in (([str(UNSEEN), "--learner", "oracle"], "learner"), ([str(lost)], "measurements")):
        refused = CliRunner().invoke(app, ["predict", "pairs", *words])
        assert isinstance(refused.exception, InputError)
        assert refused.exception.field == field


def test_the_best_learner_that_is_installed_predicts_and_is_named(monkeypatch):
    assert learners.BEST_FIRST[0] == shipped_predictor().utilization.learner, "the one that ships was kept as it errs least"
    assert {*learners.BEST_FIRST} == {*learners.LEARNERS}
    monkeypatch.setattr(learners, "installed_learners", lambda: {"linear": learners.linear_regression})
    said = CliRunner().invoke(app, ["predict", "pairs", str(UNSEEN)])
    assert "time-slicing, utilization by linear: off by" in said.stderr
    assert "xgboost, the learner of the figures in docs/papers/prediction.md, is not installed" in said.stderr
    assert json.loads(CliRunner().invoke(app, ["predict", "pairs", str(UNSEEN), "--json"]).stdout)["learner"] == "linear"
    assert "not installed" not in asked(str(UNSEEN)).stderr, "who asks for one is told of no other"
    monkeypatch.setattr(
        learners,
        "installed_learners",
        lambda: dict.fromkeys(("linear", "random-forest", "lightgbm"), learners.linear_regression),
    )
    assert learners.best_installed() == "lightgbm"


def asked(*words: str) -> Result:
    return CliRunner().invoke(app, ["predict", "pairs", *words, "--learner", "linear"])


def test_no_pair_is_both_advised_and_advised_against_however_many_are_shown():
    told = json.loads(asked(str(UNSEEN), "--show", "50", "--json").stdout)
    ends = [{tuple(pair["pair"]) for pair in told[end]} for end in ("advised", "advised_against")]
    assert all(ends)
    assert not ends[0] & ends[1]


def test_pairs_of_another_device_are_refused_and_those_of_the_fit_are_named(tmp_path):
    first, *rest = UNSEEN.read_text().splitlines()
    about = json.loads(first)
    del about["about"]["device"]
    elsewhere = tmp_path / "cpu.jsonl"
    elsewhere.write_text("\n".join([json.dumps(about), *rest]) + "\n")
    refused = asked(str(elsewhere)).exception
    assert isinstance(refused, InputError)
    assert (refused.field, refused.value) == ("device", "cpu")
    assert json.loads(asked(str(UNSEEN), "--json").stdout)["of_the_set_that_ships"] == 0
    fitted = asked(str(MEASURED / "h200_pairs.jsonl"))
    assert "595 of these pairs are from the set that the predictor was fitted to" in fitted.output


def test_of_one_pair_no_share_of_what_varies_is_told(tmp_path):
    first, *rest = UNSEEN.read_text().splitlines()
    equals = next(row for row in map(json.loads, rest) if "pair" in row)
    equals["pair"], equals["undisturbed_steps_per_s"] = equals["pair"][:1] * 2, equals["steps_per_s"]
    one = tmp_path / "one.jsonl"
    one.write_text(f"{first}\n{json.dumps(equals)}\n")
    said = asked(str(one))
    assert "over all 1 pairs" in said.output
    assert "R² –" in said.output
    assert json.loads(asked(str(one), "--json").stdout)["r_squared"] is None
