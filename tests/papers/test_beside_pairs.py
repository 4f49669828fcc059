"""Pairs of which each was seen alone in the same second: what docs/papers/profiles.md says of their noise, and
docs/papers/prediction.md of those that are advised or not."""

from __future__ import annotations

import statistics

import pytest

from fairlead.prediction.measured_profiles import mean_slowdowns, measured_slowdowns, shipped_profiles
from fairlead.profiling.pair_selection import select_configurations
from fairlead_papers.measured_data import evaluation_set, evaluation_sets
from fairlead_papers.prediction.evaluation import of_slowdown

ALONE = shipped_profiles("h200").alone
TENS = ("h200_beside_ten", "h200_beside_ten_again", "h200_beside_ten_third")
TENS_MPS = ("h200_beside_ten_mps", "h200_beside_ten_mps_again")
NAMES = ("h200_beside_pairs", *TENS, *TENS_MPS, "h200_pairs_beside")


def rows_of(name: str) -> list[dict]:
    return [row for row in evaluation_set(name)[1] if "pair" in row]


def by_the_session(rows: list[dict]) -> dict[tuple[str, str], list[tuple[float, ...]]]:
    """Slowdowns by the median of what each did alone in all of the session."""
    seen: dict[str, list[float]] = {}
    for row in rows:
        for window in row["undisturbed_windows"]:
            for name, rate in zip(row["pair"], window):
                seen.setdefault(name, []).append(rate)
    usual = {name: statistics.median(rates) for name, rates in seen.items()}
    found: dict[tuple[str, str], list[tuple[float, ...]]] = {}
    for row in rows:
        slower = tuple(usual[name] / rate for name, rate in zip(row["pair"], row["steps_per_s"]))
        found.setdefault((row["pair"][0], row["pair"][1]), []).append(slower)
    return found


def apart(one: float, other: float) -> float:
    return abs(one - other) / ((one + other) / 2)


def test_every_third_of_those_who_span_utilization_met_each_other():
    twelve = select_configurations(evaluation_set("h200")[1])[::3]
    met = {frozenset(row["pair"]) for row in rows_of("h200_beside_pairs")}
    assert met == {frozenset((one, other)) for one in twelve for other in twelve}


def test_all_of_those_who_span_utilization_met_each_other():
    met = {frozenset(row["pair"]) for row in rows_of("h200_pairs_beside")}
    names = select_configurations(evaluation_set("h200")[1])
    assert len(met) == 595
    assert met == {frozenset((one, other)) for one in names for other in names}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_went_wrong(name: str):
    rows = evaluation_set(name)[1]
    assert not [row for row in rows if "problem" in row]
    assert all(min(window) > 0 for row in rows_of(name) for window in (*row["windows"], *row["undisturbed_windows"]))


@pytest.mark.parametrize(
    ("name", "looks", "many", "told"),
    [
        ("h200_beside_pairs", 2, 76, 0.0496),
        ("h200_beside_ten", 2, 14, 0.0313),
        ("h200_beside_ten_again", 2, 25, 0.0158),
        ("h200_beside_ten_third", 2, 17, 0.0483),
        ("h200_beside_ten_mps", 2, 27, 0.0348),
        ("h200_beside_ten_mps_again", 2, 19, 0.0279),
        ("h200_pairs_beside", 1, 255, 0.0639),
    ],
)
def test_speeds_measured_again_minutes_later_differ_by_less_than_five_percent_in_the_median_with_two_looks(
    name: str, looks: int, many: int, told: float
):
    speeds: dict[tuple[str, str], list[list[float]]] = {}
    for row in rows_of(name):
        assert len(row["windows"]) == looks
        speeds.setdefault(tuple(row["pair"]), []).append(row["steps_per_s"])
    twice = [both for both in speeds.values() if len(both) == 2]
    assert len(twice) == many
    apart_by = statistics.median(apart(*each) for both in twice for each in zip(*both))
    assert apart_by == pytest.approx(told, abs=0.0001)
    assert (apart_by < 0.05) == (looks == 2)


def test_all_that_was_measured_twice_in_one_session_differs_by_less_than_five_percent_in_the_median():
    differ = []
    for name in (one for one in evaluation_sets() if evaluation_set(one)[0].get("sharing")):
        speeds: dict[tuple[object, ...], list[list[float]]] = {}
        for row in rows_of(name):
            speeds.setdefault((row.get("session"), *row["pair"]), []).append(row["steps_per_s"])
        differ += [apart(*each) for seen in speeds.values() if len(seen) > 1 for each in zip(*seen[:2])]
    assert len(differ) == 2 * 523
    assert statistics.median(differ) == pytest.approx(0.048, abs=0.0005)


@pytest.mark.parametrize(
    ("name", "many", "own", "session"),
    [
        ("h200_beside_pairs", 60, 0.059, 0.124),
        ("h200_beside_ten", 20, 0.054, 0.077),
        ("h200_beside_ten_again", 18, 0.062, 0.093),
        ("h200_beside_ten_third", 18, 0.080, 0.071),
        ("h200_beside_ten_mps", 20, 0.046, 0.098),
        ("h200_beside_ten_mps_again", 20, 0.076, 0.073),
        ("h200_pairs_beside", 280, 0.116, 0.154),
    ],
)
def test_how_far_from_one_those_are_seen_who_are_hardly_in_the_way_by_speeds_alone_of_the_same_second_and_of_the_session(
    name: str, many: int, own: float, session: float
):
    rows = rows_of(name)
    deviations = []
    for table in (measured_slowdowns(evaluation_set(name)[1], ALONE), by_the_session(rows)):
        light = [
            each
            for pair, found in table.items()
            if sum(ALONE[one].utilization for one in pair) <= 70
            for both in found
            for each in both
        ]
        assert len(light) == many
        deviations.append(statistics.pstdev(light))
    assert deviations == pytest.approx([own, session], abs=0.0006)


@pytest.mark.parametrize(
    ("names", "many", "told"),
    [
        (("h200_beside_ten", "h200_beside_ten_again"), 44, 0.028),
        (("h200_beside_ten", "h200_beside_ten_third"), 46, 0.028),
        (("h200_beside_ten_again", "h200_beside_ten_third"), 44, 0.019),
        (TENS_MPS, 46, 0.029),
    ],
)
def test_slowdowns_of_the_same_ten_are_the_same_on_other_hosts(names: tuple[str, str], many: int, told: float):
    one, other = (mean_slowdowns(evaluation_set(name)[1], ALONE) for name in names)
    both = [pair for pair in one if pair in other]
    assert len({frozenset(pair) for pair in both}) == many
    differ = statistics.median(apart(*each) for pair in both for each in zip(one[pair], other[pair]))
    assert differ == pytest.approx(told, abs=0.001)


def test_alone_on_another_host_those_who_fill_the_card_are_as_fast_and_others_differ():
    times = {row["name"]: row["steps_per_s"] / ALONE[row["name"]].steps_per_s for row in evaluation_set("h200_alone_again")[1]}
    full = [ratio for name, ratio in times.items() if ALONE[name].utilization > 95]
    assert (len(times), len(full)) == (20, 4)
    assert (min(full), max(full)) == pytest.approx((0.97, 1.00), abs=0.006)
    assert (min(times.values()), max(times.values())) == pytest.approx((0.62, 1.12), abs=0.006)
    assert statistics.median(times.values()) == pytest.approx(0.89, abs=0.006)


def test_slowdowns_of_all_of_them_follow_utilization():
    busy = {name: one.utilization for name, one in ALONE.items()}
    first, later = (mean_slowdowns(evaluation_set(name)[1], ALONE) for name in ("h200_pairs", "h200_pairs_beside"))
    mean = {pair: ((first[pair][0] + later[pair][0]) / 2, (first[pair][1] + later[pair][1]) / 2) for pair in first}
    told = [of_slowdown(pairs, busy, busy).piecewise for pairs in (first, later, mean)]
    assert told == pytest.approx([0.78, 0.81, 0.86], abs=0.006)


@pytest.mark.parametrize("name", TENS)
def test_those_advised_hardly_slow_each_other_and_those_advised_against_do(name: str):
    found = measured_slowdowns(evaluation_set(name)[1], ALONE)
    light = ("mobilenet_v1@32:128", "squeezenet1_1@32:64", "resnext50_32x4d@224:8")
    heavy = ("lstm-256x1@128:256", "vit-tiny@224:128", "unet-64@128:16")
    for names, least, most in ((light, 0.95, 1.09), (heavy, 2.19, 2.26)):
        met = [slower for pair, seen in found.items() if len({*pair} & {*names}) == 2 for both in seen for slower in both]
        assert len(met) >= 4
        assert least < min(met) <= max(met) < most
