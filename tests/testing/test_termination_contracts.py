"""Every built-in termination passes the contract that is shipped for plug-ins."""

from __future__ import annotations

import pytest

from fairlead.core.cluster import Ints
from fairlead.core.snapshot import Snapshot
from fairlead.termination.by_loss import ByLoss, BySteps
from fairlead.termination.successive_halving import HyperBand, SuccessiveHalving
from fairlead.testing import TerminationContract


class TestBySteps(TerminationContract):
    make = BySteps


class TestByLoss(TerminationContract):
    make = staticmethod(lambda: ByLoss(0.01))


class TestByLossAgainstItself(TerminationContract):
    make = staticmethod(lambda: ByLoss(0.05, targets=False))


class TestSuccessiveHalving(TerminationContract):
    make = staticmethod(lambda: SuccessiveHalving(2))


class TestHyperBand(TerminationContract):
    make = staticmethod(lambda: HyperBand(eta=2, brackets=2))


class ByClock:
    """Whoever has run for so many seconds is done, which nobody tells the loop."""

    def finished_early(self, view: Snapshot) -> Ints:
        return view.jobs.number[view.jobs.run_s > 1000.0]


def test_a_termination_by_the_clock_alone_is_found_out() -> None:
    class Tried(TerminationContract):
        make = ByClock

    with pytest.raises(AssertionError, match="by the clock alone"):
        Tried().test_skipping_quiet_rounds_changes_nothing()
