"""Packings on random mixes of sessions: how many accelerators they take, and what is answered in time."""

from __future__ import annotations

import pytest

from fairlead.core.errors import InputError
from fairlead.experiments.serving import pack_sessions
from fairlead_papers.serving_mixes import MIXES, Mix, allowed, least_accelerators, least_at_rate, try_mixes


@pytest.mark.parametrize("arrivals", ["poisson", "uniform"])
@pytest.mark.parametrize("name", ["usual", "large", "tight"])
def test_pooled_keeps_99_percent_in_their_slo_within_a_tenth_of_the_least(name, arrivals):
    for one in try_mixes(MIXES[name], range(100, 104), arrivals=arrivals, duration_s=4.0):
        assert one.least >= 20
        assert one.accelerators <= allowed(one.least), one
        assert one.attainment >= 0.99, one


def test_sessions_smaller_than_an_accelerator_cannot_be_packed_as_closely():
    for one in try_mixes(MIXES["small"], range(100, 103), duration_s=4.0):
        assert one.attainment >= 0.99, one
        assert one.at_rate > one.least
        assert one.accelerators <= allowed(one.at_rate), one


def test_squishy_takes_more_accelerators():
    ours, theirs = (try_mixes(Mix(demand=(0.2, 0.9)), [7, 8], packing=one, duration_s=1.0) for one in ("pooled", "squishy"))
    assert all(one.accelerators < other.accelerators for one, other in zip(ours, theirs))


def test_the_same_seed_gives_the_same_mix_and_the_same_answer():
    first, second = (try_mixes(Mix(accelerators=5.0), [3], duration_s=1.0) for _ in range(2))
    assert first == second
    assert least_accelerators(Mix(accelerators=5.0).draw(3), "v100") == first[0].least >= 5.0
    assert least_at_rate(Mix(accelerators=5.0).draw(3), "v100") == first[0].at_rate


def test_allowed_is_one_more_or_a_tenth():
    assert [allowed(least) for least in (3.2, 10.0, 20.0, 20.5, 29.0, 30.0)] == [5, 11, 22, 23, 31, 33]


def test_squishy_is_for_one_type():
    with pytest.raises(InputError, match="one type"):
        pack_sessions(Mix().draw(0), {"v100": 4.0, "p100": 4.0}, "squishy")
