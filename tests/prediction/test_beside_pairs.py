"""Pairs of which each was seen alone in the same second: what docs/profiles.md says of their noise, and docs/prediction.md of
those that are advised or not."""

from __future__ import annotations

import statistics

import pytest

from fairlead.prediction.profiles import each_slowdown, profiles
from fairlead.profiling.results import measured
from fairlead.profiling.spanning import spanning

ALONE = profiles("h200").alone
NAMES = ("h200_beside_pairs", "h200_beside_ten")


def rows_of(name: str) -> list[dict]:
    return [row for row in measured(name)[1] if "pair" in row]


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
    twelve = spanning(measured()[1])[::3]
    met = {frozenset(row["pair"]) for row in rows_of("h200_beside_pairs")}
    assert met == {frozenset((one, other)) for one in twelve for other in twelve}


@pytest.mark.parametrize(("name", "many", "told"), [(NAMES[0], 76, 0.0496), (NAMES[1], 14, 0.0313)])
def test_speeds_measured_again_minutes_later_differ_by_less_than_five_percent_in_the_median(name: str, many: int, told: float):
    speeds: dict[tuple[str, str], list[list[float]]] = {}
    for row in rows_of(name):
        speeds.setdefault(tuple(row["pair"]), []).append(row["steps_per_s"])
    twice = [both for both in speeds.values() if len(both) == 2]
    assert len(twice) == many
    assert statistics.median(apart(*each) for both in twice for each in zip(*both)) == pytest.approx(told, abs=0.0001)


@pytest.mark.parametrize(("name", "many", "own", "session"), [(NAMES[0], 60, 0.059, 0.124), (NAMES[1], 20, 0.054, 0.077)])
def test_who_is_hardly_in_the_way_is_seen_not_to_be_where_alone_was_seen_in_the_same_second(
    name: str, many: int, own: float, session: float
):
    rows = rows_of(name)
    deviations = []
    for slowdowns in (each_slowdown(measured(name)[1], ALONE), by_the_session(rows)):
        light = [
            each
            for pair, found in slowdowns.items()
            if sum(ALONE[one].utilization for one in pair) <= 70
            for both in found
            for each in both
        ]
        assert len(light) == many
        deviations.append(statistics.pstdev(light))
    assert deviations == pytest.approx([own, session], abs=0.0006)


def test_those_advised_hardly_slow_each_other_and_those_advised_against_do():
    found = each_slowdown(measured("h200_beside_ten")[1], ALONE)
    light = ("mobilenet_v1@32:128", "squeezenet1_1@32:64", "resnext50_32x4d@224:8")
    heavy = ("lstm-256x1@128:256", "vit-tiny@224:128", "unet-64@128:16")
    for names, least, most in ((light, 0.97, 1.09), (heavy, 2.19, 2.26)):
        met = [slower for pair, seen in found.items() if len({*pair} & {*names}) == 2 for both in seen for slower in both]
        assert len(met) >= 6
        assert least < min(met) <= max(met) < most
