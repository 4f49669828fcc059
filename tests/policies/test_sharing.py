"""Space sharing and placement sensitivity, for every policy that has them, against the textbook's program for each job and each
pair of jobs."""

from __future__ import annotations

import pytest

from fairlead.policies.makespan import MinTotalDurationPerf
from policies.per_job import Moment, Together, cp, moment, solved

OPTIONS = [{"space_sharing": True}, {"placement_sensitive": True}, {"space_sharing": True, "placement_sensitive": True}]


def crowded(seed: int, **options: bool) -> Moment:
    """Few kinds, so that there are classes of several jobs; where placement counts, several nodes."""
    return moment(seed, jobs=14, kinds=4, nodes=2 if "placement_sensitive" in options else 1)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options))
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.usefixtures("all_digits")
def test_the_longest_duration_is_the_least_possible(seed, options):
    made = crowded(seed, **options)
    left = made.view.jobs.steps_left
    allocation, _ = MinTotalDurationPerf(**options).allocate(made.view, None)
    book = Together.of(made, **options)
    x, throughput, keeps = book.program()
    speed = cp.Variable()
    problem = [*keeps, cp.multiply(1e3 / left, throughput) >= speed]
    best = solved(cp.Problem(cp.Maximize(speed), problem))
    got = solved(cp.Problem(cp.Maximize(speed), [*problem, *book.as_dealt(x, allocation)]))
    assert got == pytest.approx(best, rel=1e-6)
