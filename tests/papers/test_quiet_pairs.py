"""Pairs measured while the host was quiet, and the same pairs of a slower host: what docs/papers/profiles.md says of them."""

from __future__ import annotations

import pytest

from fairlead.prediction.measured_profiles import mean_slowdowns, shipped_profiles
from fairlead_papers.measured_data import evaluation_set
from fairlead_papers.prediction.evaluation import of_slowdown

QUIET, FIRST = (evaluation_set(name)[1] for name in ("h200_quiet_pairs", "h200_pairs"))
ALONE = shipped_profiles("h200").alone
ELSEWHERE = {name: one.utilization for name, one in ALONE.items()}


def own(rows: list[dict[str, object]]) -> dict[str, float]:
    """Utilizations alone, of the session itself."""
    return {row.get("alone", row["name"]): row["utilization"] for row in rows if "pair" not in row}


def test_slowdowns_follow_utilizations_of_their_own_host_whether_it_is_quiet_or_not():
    quiet = mean_slowdowns(QUIET, ALONE)
    first = {pair: both for pair, both in mean_slowdowns(FIRST, ALONE).items() if pair in quiet}
    assert len({frozenset(pair) for pair in quiet}) == 366
    told = {
        (name, whose): of_slowdown(pairs, busy, busy).piecewise
        for name, pairs, rows in (("quiet", quiet, QUIET), ("first", first, FIRST))
        for whose, busy in (("own", own(rows)), ("elsewhere", ELSEWHERE))
    }
    assert told == pytest.approx(
        {("quiet", "own"): 0.86, ("first", "own"): 0.87, ("quiet", "elsewhere"): 0.83, ("first", "elsewhere"): 0.78}, abs=0.006
    )


def test_with_a_quiet_host_who_is_alone_does_more_and_is_slowed_more():
    quiet, first = mean_slowdowns(QUIET, ALONE), mean_slowdowns(FIRST, ALONE)
    busy = own(QUIET)
    full = [pair for pair in quiet if busy[pair[0]] + busy[pair[1]] >= 160]
    medians = [sorted(table[pair][0] for pair in full)[len(full) // 2] for table in (quiet, first)]
    assert medians == pytest.approx([2.24, 1.57], abs=0.01)


def test_who_had_no_quiet_window_alone_is_named():
    assert {row["name"] for row in QUIET if row["quiet"] < 0.25} == {"unet-64@128:4", "vit-tiny@224:32"}
