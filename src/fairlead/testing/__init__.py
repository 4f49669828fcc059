"""For authors of plug-ins and for Fairlead's own tests: builders, a harness, invariants, and the contracts that every policy,
placement, admission, termination, estimator, backend and journal passes.

    from fairlead.testing import policy_contract

    def test_my_policy():
        policy_contract(MyPolicy)

Or as a class, with one test for each promise:

    from fairlead.testing import PolicyContract

    class TestMyPolicy(PolicyContract):
        make = MyPolicy
"""

from fairlead.testing.builders import cluster, job, random_jobs, random_table
from fairlead.testing.contract_functions import (
    admission_contract,
    backend_contract,
    estimator_contract,
    journal_contract,
    placement_contract,
    policy_contract,
    termination_contract,
)
from fairlead.testing.contracts import (
    AdmissionContract,
    BackendContract,
    EstimatorContract,
    JournalContract,
    PlacementContract,
    PolicyContract,
    TerminationContract,
)
from fairlead.testing.harness import Harness, Round
from fairlead.testing.invariants import InvariantBroken, check_events, check_hosts, check_state

__all__ = [
    "AdmissionContract",
    "BackendContract",
    "EstimatorContract",
    "Harness",
    "InvariantBroken",
    "JournalContract",
    "PlacementContract",
    "PolicyContract",
    "Round",
    "TerminationContract",
    "admission_contract",
    "backend_contract",
    "check_events",
    "check_hosts",
    "check_state",
    "cluster",
    "estimator_contract",
    "job",
    "journal_contract",
    "placement_contract",
    "policy_contract",
    "random_jobs",
    "random_table",
    "termination_contract",
]
