"""For authors of plug-ins and for Fairlead's own tests: builders, a harness, invariants, and the contracts that every policy,
placement, admission, termination, estimation, backend and journal passes.

    from fairlead.testing import PolicyContract

    class TestMine(PolicyContract):
        make = MyPolicy
"""

from fairlead.testing.builders import cluster, job, random_jobs, random_table
from fairlead.testing.contracts import (
    AdmissionContract,
    BackendContract,
    EstimationContract,
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
    "EstimationContract",
    "Harness",
    "InvariantBroken",
    "JournalContract",
    "PlacementContract",
    "PolicyContract",
    "Round",
    "TerminationContract",
    "check_events",
    "check_hosts",
    "check_state",
    "cluster",
    "job",
    "random_jobs",
    "random_table",
]
