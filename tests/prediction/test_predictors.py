"""What is learned, how it is kept, and that the shipped predictor is as good as its page says."""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from fairlead.cli.main import app
from fairlead.core.errors import InputError
from fairlead.models import interference
from fairlead.models.learned_models import Forest, Line, Tree, model_from_data
from fairlead.prediction import learners
from fairlead.prediction.features import Features
from fairlead.prediction.fit_predictor import FOLDS, KernelProfiles, dataset, errors_at_random, kernel_durations
from fairlead.prediction.measured_profiles import (
    InterferenceModel,
    SoloProfile,
    devices,
    mean_slowdowns,
    measured_slowdowns,
    shipped_profiles,
)
from fairlead.prediction.predictor import (
    Memory,
    Predictor,
    Utilization,
    fingerprint,
    fit_memory,
    load_predictor,
    rmsle,
    shipped_predictor,
)
from fairlead.profiling.pair_selection import SelectionMetric
from fairlead.profiling.results import measured_set
from fairlead_papers.prediction import evaluation


@pytest.fixture(scope="module")
def data():
    return dataset(measured_set()[1], measured_set("h200_features")[1])


def rows(seed: int = 0, many: int = 80) -> tuple[np.ndarray, np.ndarray]:
    inputs = np.random.default_rng(seed).normal(size=(many, 5))
    return inputs, np.sin(inputs[:, 0]) + (inputs[:, 1] > 0.3) * inputs[:, 2]


@pytest.mark.parametrize("name", learners.LEARNERS)
def test_what_a_learner_learned_is_kept_as_numbers_and_says_the_same(name: str):
    if name not in learners.installed_learners():
        pytest.skip(f"{name} is not installed")
    inputs, wanted = rows()
    learned = learners.LEARNERS[name](inputs, wanted)
    again = model_from_data(json.loads(json.dumps(learned.to_data())), 5, "test")
    other, _ = rows(1)
    assert again.predict(other) == pytest.approx(learned.predict(other))
    assert len(learned.importance()) == 5
    error = np.abs(learned.predict(inputs) - wanted).mean()
    assert error < np.abs(wanted - wanted.mean()).mean()


def test_forests_say_what_the_libraries_say():
    ensemble = pytest.importorskip("sklearn.ensemble")
    inputs, wanted = rows()
    theirs = ensemble.RandomForestRegressor(120, min_samples_leaf=2, max_features=0.4, random_state=0).fit(inputs, wanted)
    assert learners.random_forest(inputs, wanted).predict(inputs) == pytest.approx(theirs.predict(inputs))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "pickle"},
        {"kind": "line", "base": 0, "weights": [1], "scale": [1]},
        {"kind": "line", "base": 0, "weights": [1, float("nan")], "scale": [1, 1]},
        {"kind": "forest", "base": 0, "gains": [0, 0], "trees": []},
        {"kind": "forest", "base": 0, "gains": [0, 0], "trees": [[[0], [0.0], [0], [0], [0.0]]]},  # round for ever
        {"kind": "forest", "base": 0, "gains": [0, 0], "trees": [[[7, -1, -1], [0, 0, 0], [1, 0, 0], [2, 0, 0], [0, 1, 2]]]},
        {"kind": "forest", "base": 0, "gains": [0, 0], "trees": [[[0, -1], [0], [1], [1], [0]]]},
    ],
)
def test_a_model_that_makes_no_sense_is_refused(wrong: dict):
    with pytest.raises(InputError):
        model_from_data(wrong, 2, "test")


def test_a_tree_asks_its_questions():
    tree = Tree((0, -1, -1), (0.5, 0, 0), (1, -1, -1), (2, -1, -1), (0, 10.0, 20.0))
    assert Forest(1.0, (tree, tree), (1.0,)).predict(np.array([[0.5], [0.6]])).tolist() == [21.0, 41.0]


def test_slowdowns_are_found_again_and_are_at_least_one():
    own, others = np.random.default_rng(0).uniform(5, 100, (2, 400))
    true = interference.Slowdown((1.0, 0.0, 0.1), (0.6, 0.2, 0.3, 0.1, 0.5, 0.2))
    found = interference.fit(own, others, true.of(own, others))
    assert found.of(own, others) == pytest.approx(true.of(own, others), abs=0.03)
    assert interference.Slowdown.from_data(found.to_data(), "test") == found
    assert true.slowdowns(np.array([50.0])).tolist() == [1.0]
    assert true.slowdowns(np.array([])).tolist() == []
    three = true.slowdowns(np.array([90.0, 90.0, 90.0]))
    assert (three > true.slowdowns(np.array([90.0, 90.0])).max()).all()
    with pytest.raises(InputError, match="below and above"):
        interference.fit(own[:3], others[:3], own[:3])


@pytest.mark.parametrize("percent", [0.0, 5e-324, 1e-320, 1e-12, 100.0])
def test_nobody_is_faster_in_company_however_little_both_do(percent: float):
    slower = shipped_predictor().slowdowns(np.array([percent, percent]))
    assert (slower >= 1).all()
    assert np.isfinite(slower).all()


def test_what_is_learned_may_say_far_more_than_all():
    beyond = Utilization("line", ("flops",), Line(1e30, (1.0,), (1.0,)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert beyond.percent([{"flops": 1.0}]).tolist() == [100.0]


def test_the_measured_pairs_are_what_their_page_says():
    known = shipped_profiles()
    assert len(known.paired()) == 34
    by_turns, at_once = known.pairs["time-slicing"], known.pairs["mps"]
    assert len({frozenset(pair) for pair in by_turns}) == 595
    assert len({frozenset(pair) for pair in at_once}) == 570
    assert known.slowdowns("bert-base@128:4", "encoder-512x6@128:8")[0] > 1.5
    for (one, other), slower in by_turns.items():
        assert by_turns[other, one] == slower[::-1] or one == other
    with pytest.raises(InputError, match="measured as a pair"):
        known.slowdowns("bert-base@128:4", "nobody")


def test_slowdown_on_pairs_left_out():
    known = shipped_profiles()
    busy = {name: one.utilization for name, one in known.alone.items()}
    found = evaluation.of_slowdown(known.pairs["time-slicing"], busy, busy)
    assert found.piecewise >= 0.75 > found.of_sum > found.linear > found.constant
    assert found.finer is None


def test_slowdown_at_once_on_pairs_left_out_needs_what_multiprocessors_are_held(data):
    known = shipped_profiles("h200", SelectionMetric.DEVICE_FILL)
    busy = {name: one.utilization for name, one in known.alone.items()}
    active = {name: one.multiprocessors for name, one in known.alone.items() if one.multiprocessors is not None}
    held = KernelProfiles(active, kernel_durations(data))
    found = evaluation.of_slowdown(known.pairs["mps"], busy, busy, held)
    assert len(found.measured) == 34 * 34
    assert found.finer is not None
    assert found.finer >= 0.75 > found.piecewise > found.linear > found.constant


def test_what_differs_between_two_measurements_of_the_same_is_noise():
    known = shipped_profiles()
    twice = evaluation.ceiling(measured_slowdowns(measured_set("h200_share_pairs_mps")[1], known.alone))
    assert twice is not None
    assert twice[0] == 19
    assert 0.85 < twice[1] < 0.95
    assert evaluation.ceiling(measured_slowdowns(measured_set("h200_pairs_mps")[1], known.alone)) is None


def test_undisturbed_speeds_are_those_of_the_same_session():
    alone = {name: SoloProfile(name, "f", 1, busy, 0) for name, busy in (("a", 90.0), ("b", 20.0))}
    row = {"spread": 0.0, "steps_per_s": 10.0}
    rows = [
        {**row, "name": "a", "alone": "a", "session": 1},
        {**row, "name": "a (2)", "alone": "a", "session": 2, "steps_per_s": 5.0, "windows": [4.0, 5.0, 6.0]},
        {**row, "name": "b"},
        {"name": "a + b", "pair": ["a", "b"], "steps_per_s": [5.0, 10.0]},
        {"name": "a + b (2)", "pair": ["a", "b"], "steps_per_s": [5.0, 5.0], "session": 2},
        {"name": "b + b", "pair": ["b", "b"], "problem": "no memory"},
    ]
    assert measured_slowdowns(rows, alone) == {("a", "b"): [(2.0, 1.0), (1.0, 2.0)]}


def test_who_was_seen_alone_in_the_same_second_is_compared_with_that():
    alone = {name: SoloProfile(name, "f", 1.0, 10.0, 0.0) for name in "ab"}
    row = {"name": "a + b", "pair": ["a", "b"], "steps_per_s": [5.0, 10.0], "windows": [[5.0, 10.0]]}
    rows = [
        *({"name": name, "alone": name, "spread": 0.0, "steps_per_s": 10.0, "windows": 3} for name in "ab"),
        row,
        {**row, "name": "a + b (2)", "undisturbed_steps_per_s": [6.0, 30.0]},
        {**row, "name": "a + b (3)", "windows": 2},
    ]
    first, second, third = measured_slowdowns(rows, alone)["a", "b"]
    assert second == pytest.approx((1.2, 3.0))
    assert first == third, "how many windows there were says nothing of what was seen in them"
    assert measured_slowdowns(rows[3:4], alone) == {("a", "b"): [second]}, "nobody was by himself, and nobody had to be"
    mine, theirs = ((one + 2 * other) / 3 for one, other in zip(second, first))
    assert mean_slowdowns(rows, alone)["b", "a"] == pytest.approx((theirs, mine))


def test_how_far_off_it_may_be_is_of_the_way_by_which_it_was_told():
    plain = interference.Slowdown((1.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0, 0.0, 0.0), 0.5, 0.5)
    finer = interference.Slowdown((2.0, 0.0, 0.0, 0.0), (2.0, *[0.0] * 7), 0.1, 0.1)
    busy, held, kernel_s = np.full((3, 1), 50.0), np.array([20.0, 30.0, np.nan]), np.full(3, 1e-4)
    slower, off, by_holding = InterferenceModel(plain, finer).slower(busy, held, kernel_s)
    assert (slower[0, 1, 0], off[0, 1, 0], by_holding[0, 1, 0]) == (2.0, 0.1, True)
    assert (slower[0, 2, 0], off[0, 2, 0], by_holding[0, 2, 0]) == (1.0, 0.5, False), "of the third nobody knows what it holds"


PLAIN = interference.Slowdown(below=(1.0, 0.0, 0.1), above=(0.2, 0.45, 0.45, 0.1, 0.6, 0.1))


def test_beside_more_than_one_full_neighbour_time_is_divided_in_proportion():
    beside_one = PLAIN.of(np.array(50.0), np.array(100.0))
    assert beside_one > 1
    assert PLAIN.of(np.array(50.0), np.array(200.0)) == pytest.approx(beside_one * 250 / 150)


def test_a_pair_measured_in_both_orders_is_one_pair_measured_twice():
    """As where it was asked for with its names in another order."""
    alone = {name: SoloProfile(name, "f", 1.0, 90.0, 0.0) for name in "ab"}
    rows = [
        {"name": "a + b", "pair": ["a", "b"], "steps_per_s": [5.0, 10.0], "undisturbed_steps_per_s": [10.0, 10.0]},
        {"name": "b + a", "pair": ["b", "a"], "steps_per_s": [10.0, 2.5], "undisturbed_steps_per_s": [30.0, 10.0]},
    ]
    assert measured_slowdowns(rows, alone) == {("a", "b"): [(2.0, 1.0), (4.0, 3.0)]}
    assert mean_slowdowns(rows, alone) == {("a", "b"): (3.0, 2.0), ("b", "a"): (2.0, 3.0)}


def test_longer_kernels_of_others_are_waited_for():
    own, others = np.random.default_rng(0).uniform(5, 100, (2, 400))
    grain = np.random.default_rng(1).uniform(-1, 1, 400)
    true = interference.Slowdown((1.0, 0.0, 0.1, 0.2), (0.6, 0.2, 0.3, 0.1, 0.5, 0.2, 0.3, 0.2))
    found = interference.fit(own, others, interference.terms(own, others, 2, grain) @ true.above, grain)
    assert found.above == pytest.approx(true.above)
    assert interference.Slowdown.from_data(found.to_data(), "test") == found
    busy, held = np.array([90.0, 90.0]), np.array([60.0, 60.0])
    short, long = true.slowdowns(busy, held, np.array([1e-5, 1e-3]))
    assert short > true.slowdowns(busy, held)[0] > long
    assert true.slowdowns(busy, held) == pytest.approx(true.slowdowns(busy, held, np.array([1e-4, 1e-4])))
    three = true.slowdowns(np.array([90.0] * 3), np.array([60.0] * 3), np.array([1e-5, 1e-3, 1e-4]))
    assert three[0] > three[2] > three[1] > 1


def test_the_command_knows_multiprocessors():
    def mean_slowdowns(*more: str) -> list[float]:
        asked = ["predict", "pair", "98", "98", "--sharing", "mps", *more, "--json"]
        return json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)["slowdowns"]

    small, large = mean_slowdowns("--multiprocessors", "20", "--multiprocessors", "80")
    assert small > 1.4 > large, "who is beside a large one suffers"
    held = ["--multiprocessors", "80", "--multiprocessors", "80"]
    short, long = mean_slowdowns(*held, "--kernel-us", "20", "--kernel-us", "400")
    assert short > mean_slowdowns(*held)[0] > long
    for strange in (["--multiprocessors", "20"], [*held, "--kernel-us", "-1", "--kernel-us", "5"]):
        refused = CliRunner().invoke(app, ["predict", "pair", "98", "98", *strange])
        assert isinstance(refused.exception, InputError)
        assert refused.exception.field == strange[-2][2:]


@pytest.mark.parametrize(
    ("more", "field"),
    [
        (["--multiprocessors", "80", "--multiprocessors", "80"], "multiprocessors"),
        (["--kernel-us", "20", "--kernel-us", "400"], "kernel-us"),
        (["--kernel-us", "20", "--kernel-us", "400", "--sharing", "mps"], "kernel-us"),
    ],
)
def test_what_does_not_count_for_a_way_of_sharing_is_refused(more, field):
    refused = CliRunner().invoke(app, ["predict", "pair", "98", "98", *more])
    assert isinstance(refused.exception, InputError)
    assert refused.exception.field == field
    assert "--sharing mps" in refused.exception.expected


def test_the_command_knows_what_measured_configurations_hold():
    def asked(*words: str) -> dict[str, object]:
        return json.loads(CliRunner().invoke(app, ["predict", "pair", *words, "--json"], catch_exceptions=False).stdout)

    known = sorted({one for one, _ in shipped_profiles("h200", SelectionMetric.DEVICE_FILL).pairs["mps"]})
    one, other = known[0], known[-1]
    through = asked(one, other, "--sharing", "mps")
    assert through["by"] == "multiprocessors and kernels"
    assert through["measured"] == list(shipped_profiles("h200", SelectionMetric.DEVICE_FILL).slowdowns(one, other, "mps"))
    turns = asked(one, other)
    assert turns["by"] == "utilization alone"
    assert "measured" not in turns, "these were measured through MPS"
    guessed = asked(one, "mnasnet1_0@224:8", "--sharing", "mps")
    assert guessed["by"] == "multiprocessors and kernels, predicted from the graph of one job"
    assert asked(one, "40", "--sharing", "mps")["by"] == "utilization alone"
    refused = CliRunner().invoke(app, ["predict", "pair", "resnet5@224:8", "40"])
    assert isinstance(refused.exception, InputError)
    assert "resnet50@224:8" in refused.exception.expected
    assert "by utilization alone" in CliRunner().invoke(app, ["predict", "pair", "40", "50"]).stderr


def test_only_devices_are_offered():
    assert devices() == ("h200",)
    with pytest.raises(InputError) as refused:
        shipped_profiles("h200_pairs")
    assert "h200_" not in refused.value.expected


def test_memory_of_families_left_out(data):
    found = evaluation.of_memory(data)
    assert found.enough(found.with_overhead) >= 0.95
    assert found.median_error(found.with_overhead) <= 0.15


def test_memory_is_found_again_and_wrong_numbers_are_refused(data):
    fitted = fit_memory(data.columns, data.tensors_mb, data.device_mb, data.reserved_mb)
    assert Memory.from_data(fitted.to_data(), "test") == fitted
    assert (fitted.mb(data.columns) > fitted.tensors_mb(data.columns)).all()
    for wrong in ({"activations": 1}, {**fitted.to_data(), "loss": "much"}, {**fitted.to_data(), "loss": float("inf")}):
        with pytest.raises(InputError):
            Memory.from_data(wrong, "test")


def test_utilization_by_the_line_on_rows_left_out(data):
    assert len(data) >= 290
    assert errors_at_random(data, learners.linear_regression).rmsle < 0.25


def test_a_set_without_features_is_refused():
    with pytest.raises(InputError, match="same configurations"):
        dataset(measured_set()[1], [])
    row = measured_set()[1][0]
    with pytest.raises(InputError, match="profile features"):
        dataset(measured_set()[1][:2], [{"name": row["name"], "flops": 1}, {"name": measured_set()[1][1]["name"]}])


def test_the_shipped_predictor_is_of_the_shipped_measurements():
    predictor = shipped_predictor()
    names = (
        "h200",
        "h200_features",
        "h200_pairs",
        "h200_pairs_beside",
        "h200_pairs_mps",
        "h200_share_pairs_mps",
        "h200_activity",
    )
    assert predictor.about["fingerprint"] == fingerprint(*(measured_set(name)[1] for name in names))
    assert predictor.device == "NVIDIA H200"
    assert set(predictor.slowdown) == {"time-slicing", "mps"}
    assert set(predictor.at_once) == {"mps"}
    busy, small, large = np.array([98.0, 98.0]), np.array([20.0, 20.0]), np.array([85.0, 85.0])
    kernels_s = np.array([1e-4, 1e-4])
    assert predictor.slowdowns(busy, "mps", small, kernels_s).max() < 1.3
    assert predictor.slowdowns(busy, "mps", large, kernels_s).min() > 1.6
    assert predictor.slowdowns(busy, "time-slicing", small, kernels_s) == pytest.approx(predictor.slowdowns(busy))


def test_another_device_is_refused_and_a_known_one_is_not(data):
    row = next(row for row in measured_set("h200_features")[1] if row["name"] == "resnet50@224:64")
    of_it = Features(**{name: row[name] for name in Features.__dataclass_fields__})
    for device in (None, "h200", "NVIDIA H200"):
        assert shipped_predictor().predict(of_it, device).utilization > 80
    with pytest.raises(InputError, match="measure there"):
        shipped_predictor().predict(of_it, "v100")
    with pytest.raises(InputError, match="time-slicing"):
        shipped_predictor().slowdowns(np.array([10.0, 20.0]), "mig")


def test_predictors_are_kept_and_files_of_something_else_are_refused(tmp_path):
    path = tmp_path / "p.json"
    shipped_predictor().save(path)
    again: Predictor = load_predictor(path)
    busy = np.array([80.0, 90.0])
    assert again.slowdowns(busy) == pytest.approx(shipped_predictor().slowdowns(busy))
    for wrong in (
        "",
        "[]",
        '{"format": "x"}',
        '{"format": "fairlead predictor 1"}',
        '{"format": "fairlead predictor 1", "about": 3}',
    ):
        path.write_text(wrong)
        with pytest.raises(InputError):
            load_predictor(path)
    with pytest.raises(InputError, match="can be read"):
        load_predictor(tmp_path / "nothing")


def test_where_nothing_varies_nobody_can_say_how_much_of_it_is_told():
    assert np.isnan(evaluation.r_squared(np.array([1.0]), np.array([1.2])))
    assert evaluation.r_squared(np.array([1.0, 2.0]), np.array([1.0, 2.0])) == 1.0


def test_errors_are_logarithmic():
    assert rmsle(np.array([9.0, 99.0]), np.array([9.0, 99.0])) == 0.0
    assert rmsle(np.array([9.0]), np.array([99.0])) == pytest.approx(np.log(10))
    assert Line(1.0, (2.0,), (3.0,)).importance().tolist() == [6.0]


def test_the_command_predicts_and_shows():
    told = json.loads(CliRunner().invoke(app, ["predict", "pair", "26", "36", "--json"], catch_exceptions=False).stdout)
    assert all(1 <= slower < 1.15 for slower in told["slowdowns"])
    told = json.loads(CliRunner().invoke(app, ["predict", "pair", "89", "99", "--json"], catch_exceptions=False).stdout)
    assert all(1.5 < slower < 2.6 for slower in told["slowdowns"])
    shown = CliRunner().invoke(app, ["predict", "show"], catch_exceptions=False).stdout
    assert "fingerprint" in shown
    assert CliRunner().invoke(app, ["predict", "pair", "126", "36"]).exit_code != 0


def test_a_device_in_brackets_is_told_as_it_is_called(tmp_path):
    path = tmp_path / "predictor.json"
    replace(shipped_predictor(), about={**shipped_predictor().about, "device": "card [/x]"}).save(path)
    asked = ["predict", "model", "resnet50@224:64", "--with", str(path), "--device", "card [/x]"]
    assert CliRunner().invoke(app, asked, catch_exceptions=False).stdout.startswith("on card [/x]: ")


DAMAGED = {
    "no device": (("about", "device"), " "),
    "features nobody has": (("utilization", "names", 0), "nosuch"),
    "a feature without a name": (("utilization", "names", 0), ""),
    "a base without end": (("utilization", "learned", "base"), "inf"),
    "a base that is no number": (("utilization", "learned", "base"), "nan"),
    "gains left out": (("utilization", "learned", "gains"), []),
    "a spread below zero": (("slowdown", "time-slicing", "spread"), [-5, -5]),
    "slowdowns beyond all": (("slowdown", "mps", "below"), [1e308] * 3),
    "memory beyond all": (("memory", "loss"), 1e308),
    "memory below zero": (("memory", "overhead_mb"), -500.0),
    "what a terminal acts on": (("about", "driver"), "\x1b[2J"),
    "a learner that a terminal acts on": (("utilization", "learner"), "\x1b[2J"),
    "a way of sharing that a terminal acts on": (("at_once",), {"\x1b[2J": PLAIN.to_data()}),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_predictor_is_refused(tmp_path, kind: str):
    path = tmp_path / "p.json"
    shipped_predictor().save(path)
    told = part = json.loads(path.read_text())
    (*way, last), value = DAMAGED[kind]
    for step in way:
        part = part[step]
    part[last] = value
    path.write_text(json.dumps(told))
    with pytest.raises(InputError, match=r"p\.json"):
        load_predictor(path)


@pytest.mark.parametrize("command", [["evaluate"], ["train", "--out", "p.json"]])
@pytest.mark.parametrize("name", ["h200_pairs", "h200_features", "nosuch", ""])
def test_only_sets_of_single_measurements_are_learned_from(command: list[str], name: str):
    refused = CliRunner().invoke(app, ["predict", *command, "--set", name])
    assert isinstance(refused.exception, InputError)
    assert refused.exception.field == "set"
    assert "h200'" in str(refused.exception) or "known: h200" in str(refused.exception)
    assert "h200_" not in refused.exception.expected


def test_how_far_predictions_are_off_fits_on_a_terminal_of_a_hundred_columns(monkeypatch):
    monkeypatch.setattr("fairlead.prediction.learners.installed_learners", lambda: {"linear": learners.LEARNERS["linear"]})
    said = CliRunner().invoke(app, ["predict", "evaluate"])
    assert said.exit_code == 0, said.output
    lines = said.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    (heading,) = [place for place, line in enumerate(lines) if line.startswith("slowdown, R²")]
    assert " ".join(lines[heading].split()) == "slowdown, R² finer own and other sum line in the sum constant"
    assert lines[heading + 1] == "time-slicing, spanning utilization"
    assert lines[heading + 2].split()[:4] == ["from", "measured", "–", "0.857"]
    ends = {len(line) for line in lines[heading:] if line.startswith(("slowdown", "  from"))}
    assert len(ends) == 1, "numbers stand below their headings"


def test_how_far_predictions_are_off_is_told_beside_a_bar_that_reaches_its_end(monkeypatch):
    seen: list[tuple[int | None, bool, list[float]]] = []

    @contextmanager
    def watched(total, what, *, quiet):
        moved: list[float] = []
        seen.append((total, quiet, moved))
        yield SimpleNamespace(advance=lambda steps=1: moved.append(steps), show=lambda **shown: None)

    monkeypatch.setattr("fairlead.prediction.learners.installed_learners", lambda: {"linear": learners.LEARNERS["linear"]})
    monkeypatch.setattr("fairlead_papers.prediction.command.progress", watched)
    for words in ([], ["--json"]):
        assert CliRunner().invoke(app, ["predict", "evaluate", *words]).exit_code == 0
    assert [quiet for _, quiet, _ in seen] == [False, True]
    assert all(total == sum(moved) > 2 * FOLDS for total, _, moved in seen)


def test_a_configuration_that_ships_is_predicted_without_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["predict", "model", "resnet50@224:64"])
    assert said.stdout.startswith("on NVIDIA H200: 97 % utilization, 10,2")
    assert "it was measured on NVIDIA H200: 99 % utilization, 8,102 MB, and is part of the training data" in said.stderr
    told = json.loads(CliRunner().invoke(app, ["predict", "model", "resnet50@224:64", "--json"]).stdout)
    assert told["measured"]["utilization"] == pytest.approx(99.08, abs=0.01)
    assert told["utilization"] == pytest.approx(97.43, abs=0.01)
    for words, field in ((["resnet50@224:63"], "model"), (["resnet50@224:64", "--batch", "8"], "batch")):
        refused = CliRunner().invoke(app, ["predict", "model", *words]).exception
        assert isinstance(refused, InputError)
        assert refused.field == field
    (tmp_path / "resnet50@224:64").write_bytes(b"no graph")
    refused = CliRunner().invoke(app, ["predict", "model", "resnet50@224:64"]).exception
    assert isinstance(refused, InputError), "where there is such a file, that is meant"


def test_a_batch_beyond_all_is_refused():
    assert CliRunner().invoke(app, ["predict", "model", "x.onnx", "--batch", "9" * 400]).exit_code == 2
