"""The contracts as plain functions: they pass what is right and fail what is wrong."""

from dataclasses import replace

import pytest

from fairlead.admission.accept import AcceptAll
from fairlead.core.errors import FairleadError
from fairlead.estimators.oracle import Oracle
from fairlead.journal.jsonl import JsonlJournal
from fairlead.placement.basic import Consolidated
from fairlead.policies.ranking.fifo import Fifo
from fairlead.simulator.backend import SimulatedBackend
from fairlead.termination.by_loss import BySteps
from fairlead.testing import (
    admission_contract,
    backend_contract,
    estimator_contract,
    journal_contract,
    placement_contract,
    policy_contract,
    termination_contract,
)


@pytest.mark.long
def test_built_in_parts_keep_their_contracts():
    policy_contract(Fifo, jobs=8)
    admission_contract(AcceptAll)
    placement_contract(Consolidated)
    estimator_contract(Oracle)
    termination_contract(BySteps)
    journal_contract(lambda folder: JsonlJournal(folder / "x.jsonl", durable=True))
    backend_contract(SimulatedBackend)


class OnOneGpu(Consolidated):
    """A wrong placement: every job gets the first accelerator of its type."""

    def place(self, selection, view):
        placed = super().place(selection, view)
        first = view.cluster.first_of[placed.launches.types[:0]] if not len(placed.launches) else None
        if first is not None:
            return placed
        zeros = placed.launches.accelerators * 0
        zeros += view.cluster.accelerators_of_type[int(placed.launches.types[0])][0]
        return replace(placed, launches=replace(placed.launches, accelerators=zeros))


def test_a_wrong_placement_is_refused_in_a_simulation():
    with pytest.raises(FairleadError, match=r"placement OnOneGpu \(policy \w+\) .*GPU"):
        placement_contract(OnOneGpu)
