"""Which accelerators serve which sessions, from one decision to the next."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.rng import stream
from fairlead.core.routes import Session
from fairlead.policies.serving.packing.pooled import Pooled, Way, accelerators_for, headroom, way
from fairlead.policies.serving.packing.replicas import Seats, Wanted, divided, seated

HOW = Pooled()
LATENCY = {"v100": np.linspace(0.009, 0.04, 32)}


def wanted(loads: dict[str, float], seats: Seats | None = None, fixed: str = "") -> list[Wanted]:
    each = 0.04 / 32
    return [
        Wanted(
            Session(name, load / each, 0.1, LATENCY),
            Way(32, load, load * each / 0.052),
            frozenset((seats or {}).get(name, ())),
            name in fixed,
        )
        for name, load in loads.items()
    ]


def scale_of(wanted: list[Wanted]) -> float:
    return 1 + headroom([one.way for one in wanted], HOW)


def asked(rates: dict[str, float], seats: Seats | None = None) -> list[Wanted]:
    """With the loads of the batches that come together at these rates."""
    found = []
    for name, rate in rates.items():
        session = Session(name, rate, 0.1, LATENCY)
        mine = way(session, "v100", HOW.wait)
        assert mine is not None
        found.append(Wanted(session, mine, frozenset((seats or {}).get(name, ()))))
    return found


def settled(seats: Seats) -> Seats:
    """New accelerators get numbers behind those that are there."""
    first = 1 + max((place for mine in seats.values() for place in mine), default=-1)
    return {name: {place if place >= 0 else first - 1 - place for place in mine} for name, mine in seats.items()}


def used(seats: Seats) -> set[int]:
    return {place for mine in seats.values() for place in mine}


def test_at_first_all_are_packed_together():
    seats = seated(wanted(dict.fromkeys("abcdefgh", 0.25)), "v100", 20, HOW, 1)
    assert len(used(seats)) == 3
    assert all(seats.values())


def test_what_is_enough_stays_as_it_is():
    seats = settled(seated(wanted({"a": 1.5, "b": 0.4, "c": 0.8}), "v100", 20, HOW, 1))
    assert seated(wanted({"a": 1.4, "b": 0.5, "c": 0.8}, seats), "v100", 20, HOW, 1) == seats


def test_only_who_lacks_something_changes():
    seats = settled(seated(wanted({"a": 1.5, "b": 0.4, "c": 0.8}), "v100", 20, HOW, 1))
    grown = seated(wanted({"a": 1.5, "b": 3.4, "c": 0.8}, seats), "v100", 20, HOW, 1)
    assert {name for name in seats if grown[name] != seats[name]} == {"b"}
    assert len(used(grown)) > len(used(seats))


def test_who_is_new_takes_what_others_leave_before_it_takes_more():
    seats = {"a": {0, 1}, "b": {1}}
    joined = seated(wanted({"a": 0.7, "b": 0.3, "c": 0.3}, seats), "v100", 20, HOW, 1)
    assert used(joined) == {0, 1}
    assert (joined["a"], joined["b"]) == ({0, 1}, {1})


def test_accelerators_that_nobody_needs_are_given_back_one_by_one():
    seats = settled(seated(wanted(dict.fromkeys("abcdefgh", 0.9)), "v100", 20, HOW, 1))
    less = wanted(dict.fromkeys("abcdefgh", 0.3), seats)
    scale = scale_of(less)
    smaller = seated(less, "v100", 20, HOW, 1)
    assert len(used(smaller)) == accelerators_for(2.4, scale) + 1
    assert all(smaller[name] <= seats[name] for name in seats)


def test_who_must_be_left_alone_is():
    seats = {"a": {0}, "b": {1}, "c": {2}, "d": {3}}
    alone = seated(wanted({"a": 3.0, "b": 0.1, "c": 0.1, "d": 0.1}, seats, fixed="a"), "v100", 9, HOW, 1)
    assert alone["a"] == {0}
    fewer = seated(wanted({"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1}, seats, fixed="abc"), "v100", 9, HOW, 0)
    assert [fewer[name] for name in "abc"] == [{0}, {1}, {2}]


def test_where_there_is_no_room_nobody_is_started_again_for_nothing():
    seats = settled(seated(wanted({"a": 3.0, "b": 3.0}), "v100", 3, HOW, 1))
    assert len(used(seats)) == 3
    assert seated(wanted({"a": 3.0, "b": 3.0}, seats), "v100", 3, HOW, 1) == seats


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_everybody_is_served_and_the_next_look_changes_nothing(seed):
    random, seats = stream(seed, "loads"), Seats()
    for _ in range(8):
        loads = {name: float(random.uniform(0.05, 2.5)) for name in "abcdefghij" if random.random() < 0.8}
        now = wanted(loads, seats)
        seats = settled(seated(now, "v100", 40, HOW, 1))
        scale = scale_of(now)
        enough = accelerators_for(sum(loads.values()), scale)
        meant, level = divided(now, seats)
        assert level <= max(1 / scale, sum(loads.values()) / enough) + 1e-5
        for name, load in loads.items():
            assert sum(meant[name].values()) == pytest.approx(load)
        assert settled(seated(wanted(loads, seats), "v100", 40, HOW, 1)) == seats


def test_where_the_count_is_rounded_down_everybody_is_served_from_the_first_on():
    rates = (1002, 1437, 2582, 1228, 7, 499, 552, 3, 292, 36)
    now = asked({f"s{n}": float(rate) for n, rate in enumerate(rates)})
    load = np.array([one.load for one in now])
    scale = scale_of(now)
    assert accelerators_for(float(load.sum()), scale) == 10 < float(load.sum()) * scale
    seats = seated(now, "v100", 10, HOW, 1)
    assert len(seats) == len(rates)
    assert len(used(seats)) == 10


def test_who_is_new_has_a_seat_where_only_crumbs_are_free():
    seats = {"a": {0}, "b": {1}, "c": {2}, "d": {3}}
    loads = {"a": 0.8, "b": 0.79, "c": 0.81, "d": 0.8, "new": 0.35}
    joined = seated(wanted(loads, seats), "v100", 4, HOW, 1)
    assert joined["new"]
    assert used(joined) == {0, 1, 2, 3}


@pytest.mark.parametrize("seats", [{}, {"a": {0}}])
def test_who_gets_next_to_no_requests_has_a_seat(seats):
    assert seated(wanted({"a": 0.5, "quiet": 1e-7}, seats), "v100", 4, HOW, 1)["quiet"]
    assert seated(wanted({"quiet": 1e-10}), "v100", 4, HOW, 1) == {"quiet": {-1}}


def test_more_than_there_is_room_for_is_given_back_where_less_is_enough():
    seats = {"a": {0, 1}}
    assert seated(wanted({"a": 0.2}, seats), "v100", 4, HOW, 1) == seats
    assert len(used(seated(wanted({"a": 0.2}, seats), "v100", 1, HOW, 1))) == 1


@pytest.mark.parametrize("seed", range(60))
def test_in_small_rooms_too_nobody_is_left_out_and_the_next_look_changes_nothing(seed):
    random, seats = stream(seed, "rates"), Seats()
    room = int(random.integers(4, 13))
    rates = {f"s{n}": float(random.choice([5, 50, 400, 1000, 3000]) * random.uniform(0.5, 1.5)) for n in range(8)}
    for _ in range(4):
        now = asked(rates, seats)
        load = np.array([one.load for one in now])
        scale = scale_of(now)
        seats = settled(seated(now, "v100", room, HOW, 1))
        assert len(used(seats)) <= room
        if accelerators_for(float(load.sum()), scale) <= room:
            assert seats.keys() == rates.keys()
        assert settled(seated(asked(rates, seats), "v100", room, HOW, 1)) == seats
        changed = {name: rate * float(random.choice([0.2, 0.7, 1.5, 4.0])) for name, rate in rates.items()}
        rates = {name: min(max(changed[name], 1.0), 8000.0) if random.random() < 0.4 else rates[name] for name in rates}
