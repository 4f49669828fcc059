"""FIFO over types with space sharing: who finds no room goes beside somebody, where that pays."""

from __future__ import annotations

import numpy as np
from instances import moment

from fairlead.core.stages import Allocated
from fairlead.policies.fifo_shares import FifoPerf
from fairlead.rounds.turns import Turns
from fairlead.testing.contracts import PolicyContract


class TestPackedContract(PolicyContract):
    make = lambda: Allocated(FifoPerf(space_sharing=True), Turns())  # noqa: E731
    residents = 2


def test_who_finds_no_room_goes_beside_whoever_it_does_best_with():
    """Two accelerators, three jobs: the third goes beside the second, with whom both together do 1.4 parts, not 1.2."""
    beside = np.zeros((3, 3, 1))
    for one, two, part in ((0, 2, 0.6), (1, 2, 0.7)):
        beside[one, two, 0] = beside[two, one, 0] = part
    given = moment([[1.0], [1.0 + 1e-9], [1.0 + 2e-9]], "v100:1,v100:1", paired=beside)
    allocation, memo = FifoPerf(space_sharing=True).allocate(given.view, None)
    assert list(zip(allocation.first.tolist(), allocation.second.tolist())) == [(0, -1), (1, 2)]
    again, _ = FifoPerf(space_sharing=True).allocate(given.view, memo)
    assert np.array_equal(again.second, allocation.second)


def test_company_that_does_not_pay_is_not_sought():
    given = moment([[1.0]] * 3, "v100:1,v100:1", paired=np.full((1, 1, 1), 0.5))
    allocation, _ = FifoPerf(space_sharing=True).allocate(given.view, None)
    assert allocation.second.tolist() == [-1, -1]
