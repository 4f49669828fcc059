"""The agent's own lease."""

from __future__ import annotations

from fairlead.runtime.agent.agent_service import AgentLease, retry_pause_s


def test_a_lease_that_was_never_granted_is_over() -> None:
    assert AgentLease(10).is_over(0.0)
    assert AgentLease(10).is_over(-5.0)


def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    lease = AgentLease(10).renewed(100.0)
    assert [lease.is_over(now) for now in (100.0, 109.9, 110.0, 500.0)] == [False, False, True, True]


def test_an_answer_out_of_order_shortens_nothing() -> None:
    lease = AgentLease(10).renewed(100.0).renewed(95.0)
    assert not lease.is_over(109.9)
    assert not lease.renewed(120.0).is_over(129.9)


def test_attempts_to_connect_stay_a_small_part_of_the_lease_apart() -> None:
    pauses = [0.1]
    for _ in range(20):
        pauses.append(retry_pause_s(pauses[-1], AgentLease(15.0)))
    assert pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.5]
    assert max(pauses) == 1.5
    assert retry_pause_s(100.0, None) == 5.0
