"""Replica assignment of sessions, from one decision to the next."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.rng import stream
from fairlead.core.routes import Session
from fairlead.policies.serving.packing.pooled import (
    PoolingOptions,
    SessionLoad,
    headroom_fraction,
    required_accelerators,
    session_load,
)
from fairlead.policies.serving.packing.replicas import ReplicaMap, SessionDemand, assign_replicas, divide_load

OPTIONS = PoolingOptions()
LATENCY = {"v100": np.linspace(0.009, 0.04, 32)}


def demands(loads: dict[str, float], replicas: ReplicaMap | None = None, fixed: str = "") -> list[SessionDemand]:
    each = 0.04 / 32
    return [
        SessionDemand(
            Session(name, load / each, 0.1, LATENCY),
            SessionLoad(32, load, load * each / 0.052),
            frozenset((replicas or {}).get(name, ())),
            name in fixed,
        )
        for name, load in loads.items()
    ]


def scale_of(demands: list[SessionDemand]) -> float:
    return 1 + headroom_fraction([one.need for one in demands], OPTIONS)


def demands_at_rates(rates: dict[str, float], replicas: ReplicaMap | None = None) -> list[SessionDemand]:
    """Demands with the pooled batches of these rates."""
    found = []
    for name, rate in rates.items():
        session = Session(name, rate, 0.1, LATENCY)
        mine = session_load(session, "v100", OPTIONS.wait)
        assert mine is not None
        found.append(SessionDemand(session, mine, frozenset((replicas or {}).get(name, ()))))
    return found


def numbered(replicas: ReplicaMap) -> ReplicaMap:
    """Number new accelerators after the present ones."""
    first = 1 + max((place for mine in replicas.values() for place in mine), default=-1)
    return {name: {place if place >= 0 else first - 1 - place for place in mine} for name, mine in replicas.items()}


def used(replicas: ReplicaMap) -> set[int]:
    return {place for mine in replicas.values() for place in mine}


def test_sessions_are_packed_together_at_first():
    replicas = assign_replicas(demands(dict.fromkeys("abcdefgh", 0.25)), "v100", 20, OPTIONS, 1)
    assert len(used(replicas)) == 3
    assert all(replicas.values())


def test_enough_accelerators_do_not_change():
    replicas = numbered(assign_replicas(demands({"a": 1.5, "b": 0.4, "c": 0.8}), "v100", 20, OPTIONS, 1))
    assert assign_replicas(demands({"a": 1.4, "b": 0.5, "c": 0.8}, replicas), "v100", 20, OPTIONS, 1) == replicas


def test_only_a_session_with_unserved_load_changes():
    replicas = numbered(assign_replicas(demands({"a": 1.5, "b": 0.4, "c": 0.8}), "v100", 20, OPTIONS, 1))
    grown = assign_replicas(demands({"a": 1.5, "b": 3.4, "c": 0.8}, replicas), "v100", 20, OPTIONS, 1)
    assert {name for name in replicas if grown[name] != replicas[name]} == {"b"}
    assert len(used(grown)) > len(used(replicas))


def test_a_new_session_uses_free_capacity_before_new_accelerators():
    replicas = {"a": {0, 1}, "b": {1}}
    joined = assign_replicas(demands({"a": 0.7, "b": 0.3, "c": 0.3}, replicas), "v100", 20, OPTIONS, 1)
    assert used(joined) == {0, 1}
    assert (joined["a"], joined["b"]) == ({0, 1}, {1})


def test_unneeded_accelerators_are_released():
    replicas = numbered(assign_replicas(demands(dict.fromkeys("abcdefgh", 0.9)), "v100", 20, OPTIONS, 1))
    less = demands(dict.fromkeys("abcdefgh", 0.3), replicas)
    scale = scale_of(less)
    smaller = assign_replicas(less, "v100", 20, OPTIONS, 1)
    assert len(used(smaller)) == required_accelerators(2.4, scale) + 1
    assert all(smaller[name] <= replicas[name] for name in replicas)


def test_a_fixed_session_keeps_its_accelerators():
    replicas = {"a": {0}, "b": {1}, "c": {2}, "d": {3}}
    alone = assign_replicas(demands({"a": 3.0, "b": 0.1, "c": 0.1, "d": 0.1}, replicas, fixed="a"), "v100", 9, OPTIONS, 1)
    assert alone["a"] == {0}
    fewer = assign_replicas(demands({"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.1}, replicas, fixed="abc"), "v100", 9, OPTIONS, 0)
    assert [fewer[name] for name in "abc"] == [{0}, {1}, {2}]


def test_no_session_is_restarted_in_vain_on_a_full_cluster():
    replicas = numbered(assign_replicas(demands({"a": 3.0, "b": 3.0}), "v100", 3, OPTIONS, 1))
    assert len(used(replicas)) == 3
    assert assign_replicas(demands({"a": 3.0, "b": 3.0}, replicas), "v100", 3, OPTIONS, 1) == replicas


@pytest.mark.parametrize("seed", range(6))
def test_all_sessions_are_served_and_a_second_call_changes_nothing(seed):
    random, replicas = stream(seed, "loads"), ReplicaMap()
    for _ in range(8):
        loads = {name: float(random.uniform(0.05, 2.5)) for name in "abcdefghij" if random.random() < 0.8}
        now = demands(loads, replicas)
        replicas = numbered(assign_replicas(now, "v100", 40, OPTIONS, 1))
        scale = scale_of(now)
        enough = required_accelerators(sum(loads.values()), scale)
        meant, level = divide_load(now, replicas)
        assert level <= max(1 / scale, sum(loads.values()) / enough) + 1e-5
        for name, load in loads.items():
            assert sum(meant[name].values()) == pytest.approx(load)
        assert numbered(assign_replicas(demands(loads, replicas), "v100", 40, OPTIONS, 1)) == replicas


def test_all_sessions_are_served_where_the_count_is_rounded_down():
    rates = (1002, 1437, 2582, 1228, 7, 499, 552, 3, 292, 36)
    now = demands_at_rates({f"s{n}": float(rate) for n, rate in enumerate(rates)})
    load = np.array([one.load for one in now])
    scale = scale_of(now)
    assert required_accelerators(float(load.sum()), scale) == 10 < float(load.sum()) * scale
    replicas = assign_replicas(now, "v100", 10, OPTIONS, 1)
    assert len(replicas) == len(rates)
    assert len(used(replicas)) == 10


def test_a_new_session_gets_a_replica_on_nearly_full_accelerators():
    replicas = {"a": {0}, "b": {1}, "c": {2}, "d": {3}}
    loads = {"a": 0.8, "b": 0.79, "c": 0.81, "d": 0.8, "new": 0.35}
    joined = assign_replicas(demands(loads, replicas), "v100", 4, OPTIONS, 1)
    assert joined["new"]
    assert used(joined) == {0, 1, 2, 3}


@pytest.mark.parametrize("replicas", [{}, {"a": {0}}])
def test_an_idle_session_gets_a_replica(replicas):
    assert assign_replicas(demands({"a": 0.5, "quiet": 1e-7}, replicas), "v100", 4, OPTIONS, 1)["quiet"]
    assert assign_replicas(demands({"quiet": 1e-10}), "v100", 4, OPTIONS, 1) == {"quiet": {-1}}


def test_accelerators_beyond_the_room_are_released():
    replicas = {"a": {0, 1}}
    assert assign_replicas(demands({"a": 0.2}, replicas), "v100", 4, OPTIONS, 1) == replicas
    assert len(used(assign_replicas(demands({"a": 0.2}, replicas), "v100", 1, OPTIONS, 1))) == 1


@pytest.mark.parametrize("seed", range(60))
def test_small_clusters_serve_all_and_a_second_call_changes_nothing(seed):
    random, replicas = stream(seed, "rates"), ReplicaMap()
    room = int(random.integers(4, 13))
    rates = {f"s{n}": float(random.choice([5, 50, 400, 1000, 3000]) * random.uniform(0.5, 1.5)) for n in range(8)}
    for _ in range(4):
        now = demands_at_rates(rates, replicas)
        load = np.array([one.load for one in now])
        scale = scale_of(now)
        replicas = numbered(assign_replicas(now, "v100", room, OPTIONS, 1))
        assert len(used(replicas)) <= room
        if required_accelerators(float(load.sum()), scale) <= room:
            assert replicas.keys() == rates.keys()
        assert numbered(assign_replicas(demands_at_rates(rates, replicas), "v100", room, OPTIONS, 1)) == replicas
        changed = {name: rate * float(random.choice([0.2, 0.7, 1.5, 4.0])) for name, rate in rates.items()}
        rates = {name: min(max(changed[name], 1.0), 8000.0) if random.random() < 0.4 else rates[name] for name in rates}
