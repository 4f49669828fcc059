"""Requests served by a plan in virtual time."""

from __future__ import annotations

import numpy as np
import pytest

from fairlead.core.routes import Resident, Server, ServingPlan, Session, latencies
from fairlead.simulator.sessions import request_arrivals, serve_requests

LINE = latencies((1, 10), (0.010, 0.019))  # 9 ms and 1 ms for each request


def session(name: str = "a", rate: float = 100.0, slo_s: float = 0.05) -> Session:
    return Session(name, rate, slo_s, {"v100": LINE})


def plan(*servers: tuple[str, ...], batch: int = 10) -> ServingPlan:
    return ServingPlan(tuple(Server("v100", tuple(Resident(name, batch, 1.0, 0.5) for name in names)) for names in servers), {})


def test_a_free_accelerator_takes_what_waits():
    serving = serve_requests(plan("a"), [session()], {"a": np.array([0.0, 0.001, 0.002, 0.5])})
    (told,) = serving.sessions
    assert (told.requests, told.in_time, told.batches) == (4, 4, 3)  # one, the two that came meanwhile, and the last
    assert told.p99_s == pytest.approx(0.010 + 0.011 - 0.001, rel=0.02)
    assert serving.busy == pytest.approx((0.031 / 0.5,))


def test_batches_are_no_larger_than_planned():
    arrivals = {"a": np.zeros(6)}
    assert serve_requests(plan("a", batch=3), [session()], arrivals).sessions[0].batches == 2
    assert serve_requests(plan("a"), [session()], arrivals).sessions[0].batches == 1


def test_a_request_that_would_be_late_is_dropped():
    late = serve_requests(plan("a"), [session(slo_s=0.015)], {"a": np.array([0.0, 0.001, 0.009])}).sessions[0]
    assert (late.in_time, late.dropped, late.late) == (2, 1, 0)  # the second could not be answered before 0.020


def test_an_overfull_queue_loses_its_head_and_not_its_batches():
    burst = np.concatenate((np.zeros(10), np.full(40, 0.001)))
    told = serve_requests(plan("a"), [session(slo_s=0.040)], {"a": burst}).sessions[0]
    assert told.in_time == 20
    assert told.batches == 2


def test_who_has_to_start_soonest_goes_first():
    sessions = [session("calm", slo_s=1.0), session("hasty", slo_s=0.030)]
    arrivals = {"calm": np.array([0.0, 0.001]), "hasty": np.array([0.002])}
    calm, hasty = serve_requests(plan(("calm", "hasty")), sessions, arrivals).sessions
    assert hasty.in_time == 1
    assert calm.p99_s == pytest.approx(0.010 + 0.010 + 0.010 - 0.001, rel=0.01)


def test_two_accelerators_take_from_one_queue():
    arrivals = {"a": np.array([0.0, 0.0, 0.0, 0.0])}
    one, two = (serve_requests(plan(*servers, batch=2), [session()], arrivals) for servers in (("a",), ("a", "a")))
    assert one.sessions[0].p99_s == pytest.approx(0.022, rel=0.02)
    assert two.sessions[0].p99_s == pytest.approx(0.011)


def test_requests_that_nobody_serves_are_not_in_time():
    serving = serve_requests(plan("a"), [session(), session("b")], {"a": np.array([0.0]), "b": np.array([0.0, 0.1])})
    assert serving.sessions[1].attainment == 0.0
    assert serving.attainment == pytest.approx(1 / 3)
    assert serve_requests(plan("a"), [session()], {"a": np.zeros(0)}).attainment == 1.0


@pytest.mark.parametrize("how", ["poisson", "uniform"])
def test_arrivals_have_the_sessions_rate_and_are_the_same_each_time(how):
    times = request_arrivals(session(rate=200.0), 50.0, 3, how)
    assert len(times) == pytest.approx(10_000, rel=0.05)
    assert (np.diff(times) >= 0).all()
    assert 0 <= times[0] < times[-1] < 50.0
    assert np.array_equal(times, request_arrivals(session(rate=200.0), 50.0, 3, how))
    assert not np.array_equal(times, request_arrivals(session(rate=200.0), 50.0, 4, how))
