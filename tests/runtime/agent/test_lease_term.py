"""The agent's own lease."""

from __future__ import annotations

from fairlead.runtime.agent.agent_service import LeaseTerm


def test_a_term_that_was_never_granted_is_over() -> None:
    assert LeaseTerm(10).is_over(0.0)
    assert LeaseTerm(10).remaining(-5.0) == 0


def test_a_term_runs_down_from_when_it_was_asked_for() -> None:
    term = LeaseTerm(10).renewed(100.0)
    assert [term.remaining(now) for now in (100.0, 104.0, 110.0, 500.0)] == [10, 6, 0, 0]
    assert not term.is_over(109.9)
    assert term.is_over(110.0)


def test_an_answer_that_was_overtaken_takes_nothing_away() -> None:
    term = LeaseTerm(10).renewed(100.0).renewed(95.0)
    assert term.remaining(100.0) == 10
    assert term.renewed(120.0).remaining(120.0) == 10
