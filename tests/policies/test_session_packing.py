"""Squishy and pooled packing of inference sessions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fairlead.core.errors import InputError
from fairlead.core.routes import ServingPlan, Session, latencies
from fairlead.policies.serving.packing.pooled import PoolingOptions, pack_pooled, pooled_batch
from fairlead.policies.serving.packing.squishy import back_to_back_batch, pack_squishy
from fairlead_papers.serving_mixes import Mix, least_accelerators

LINE = latencies((1, 41), (0.010, 0.050))  # 9 ms and 1 ms for each request


def session(name: str = "a", rate: float = 100.0, slo_s: float = 0.1, **speed: float) -> Session:
    return Session(name, rate, slo_s, {name: LINE / factor for name, factor in (speed or {"v100": 1.0}).items()})


def rates(plan: ServingPlan) -> dict[str, float]:
    total: dict[str, float] = {}
    for server in plan.servers:
        for one in server.residents:
            total[one.session] = total.get(one.session, 0.0) + one.rate
    return total


def test_latencies_are_interpolated_and_never_fall():
    assert latencies((2, 4), (0.010, 0.020)) == pytest.approx([0.010, 0.010, 0.015, 0.020])
    assert latencies((1, 2, 3), (0.010, 0.008, 0.020)) == pytest.approx([0.010, 0.010, 0.020])


def test_two_back_to_back_batches_fit_into_the_slo():
    assert back_to_back_batch(session(slo_s=0.1), "v100") == 41
    assert back_to_back_batch(session(slo_s=0.06), "v100") == 21
    assert back_to_back_batch(session(slo_s=0.019), "v100") == 0


def test_squishy_fills_accelerators_and_merges_residuals():
    sessions = [session("a", 900.0), session("b", 860.0)]  # 820 a second fill an accelerator
    plan = pack_squishy(sessions, "v100")
    assert [len(server.residents) for server in plan.servers] == [1, 1, 2]
    assert rates(plan) == pytest.approx({"a": 900.0, "b": 860.0})
    shared = plan.servers[-1]
    for one in shared.residents:
        takes = float(LINE[one.batch - 1])
        assert shared.duty_s + takes <= 0.1 + 1e-9
        assert one.batch >= one.rate * shared.duty_s - 1e-6
    assert shared.occupancy <= 1 + 1e-9


def test_squishy_does_not_merge_sessions_that_would_miss_their_slo():
    sessions = [session("a", 400.0), session("b", 400.0, 0.04)]
    assert [len(server.residents) for server in pack_squishy(sessions, "v100").servers] == [1, 1]


@pytest.mark.parametrize("seed", range(6))
def test_squishy_meets_the_slo_on_every_accelerator(seed):
    sessions = {one.name: one for one in Mix(accelerators=8.0, demand=(0.05, 2.0)).draw(seed)}
    plan = pack_squishy(list(sessions.values()), "v100")
    assert rates(plan) == pytest.approx({name: one.rate for name, one in sessions.items()})
    for server in plan.servers:
        assert server.occupancy <= 1 + 1e-6
        for one in server.residents:
            takes = float(sessions[one.session].latency_s["v100"][one.batch - 1])
            worst = server.duty_s + takes if server.duty_s else 2 * takes
            assert worst <= sessions[one.session].slo_s + 1e-9


def test_a_pooled_batch_collects_the_requests_of_the_whole_session():
    assert pooled_batch(session(rate=1e6), "v100") == 41
    assert pooled_batch(session(rate=1e6, slo_s=0.03), "v100") == 20  # 29 ms, where two in a row would be 12
    assert pooled_batch(session(rate=100.0), "v100") == 9  # 80 ms until the ninth is there, 18 ms to run
    assert pooled_batch(session(slo_s=0.009), "v100") == 0


@pytest.mark.parametrize("seed", range(6))
def test_pooled_serves_all_and_fills_accelerators_evenly(seed):
    sessions = Mix(accelerators=12.0).draw(seed)
    plan = pack_pooled(sessions, {"v100": math.inf}, PoolingOptions(neighbours=0))
    assert rates(plan) == pytest.approx({one.name: one.rate for one in sessions})
    full = [server.occupancy for server in plan.servers]
    assert full == pytest.approx([full[0]] * len(full))
    assert max(full) <= 1
    places = {one.name: sum(r.session == one.name for server in plan.servers for r in server.residents) for one in sessions}
    loads = {one.name: sum(r.occupancy for s in plan.servers for r in s.residents if r.session == one.name) for one in sessions}
    assert all(places[name] <= math.ceil(loads[name] / full[0] - 1e-6) + 1 for name in places)


def test_accelerators_back_up_their_neighbours_without_planned_requests():
    sessions = [session(name, 700.0) for name in "abcde"]
    alone, helping = (pack_pooled(sessions, {"v100": math.inf}, PoolingOptions(neighbours=reach)) for reach in (0, 1))
    assert rates(alone) == pytest.approx(rates(helping))
    for at, server in enumerate(helping.servers):
        near = alone.servers[max(0, at - 1) : at + 2]
        assert {one.session for one in server.residents} == {one.session for other in near for one in other.residents}


def test_sessions_are_assigned_to_types_with_the_fewest_accelerators():
    sessions = [session("fast", 800.0, v100=2.0, k80=0.5), session("even", 800.0, v100=1.0, k80=1.1)]
    plan = pack_pooled(sessions, {"v100": 1.0, "k80": 4.0})
    assert {(server.type, one.session) for server in plan.servers for one in server.residents} == {
        ("v100", "fast"),
        ("k80", "even"),
    }
    assert not plan.unserved


def test_a_plan_lists_unserved_sessions():
    sessions = [session("cheap", 820.0), session("dear", 82.0, v100=0.1)]
    for plan in (pack_pooled(sessions, {"v100": 1.0}), pack_squishy(sessions, "v100", 1)):
        assert len(plan.servers) == 1
        assert plan.unserved["dear"] == pytest.approx(1.0)
    none = pack_pooled([session(slo_s=0.001)], {"v100": 4.0})
    assert (none.servers, dict(none.unserved)) == ((), {"a": 1.0})
    assert dict(pack_squishy([session(slo_s=0.001)], "k80").unserved) == {"a": 1.0}


def test_the_routing_table_lists_servers_and_parts_of_each_session():
    sessions = Mix(accelerators=6.0).draw(1)
    plan = pack_pooled(sessions, {"v100": math.inf})
    assert set(plan.routing) == {one.name for one in sessions}
    for name, servers in plan.routing.items():
        assert sum(part for _, part in servers) == pytest.approx(1.0)
        assert all(name in {one.session for one in plan.servers[at].residents} for at, _ in servers)


def test_the_lower_bound_on_one_type():
    assert least_accelerators([session(rate=1640.0), session("b", 410.0)], "v100") == pytest.approx(2.5)
    assert np.isclose(least_accelerators(Mix(accelerators=20.0, demand=(1.0, 1.0)).draw(3), "v100"), 20.0)


@pytest.mark.parametrize(("field", "value"), [("wait", -0.1), ("headroom", math.inf), ("neighbours", -1), ("neighbours", 1.5)])
def test_wrong_options_are_named(field, value):
    with pytest.raises(InputError, match=f"packing pooled: field '{field}'"):
        PoolingOptions(**{field: value})


@pytest.mark.parametrize("headroom", [-1.0, 1e9, math.inf, math.nan])
def test_headroom_out_of_range_is_an_error(headroom: float):
    with pytest.raises(InputError, match=r"field 'headroom' is .*from 0 to 1000"):
        PoolingOptions(headroom=headroom)
