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

from fairlead.testing.builders import JobBuilder as JobBuilder
from fairlead.testing.builders import cluster as cluster
from fairlead.testing.builders import job as job
from fairlead.testing.builders import random_jobs as random_jobs
from fairlead.testing.builders import random_table as random_table
from fairlead.testing.contract_functions import admission_contract as admission_contract
from fairlead.testing.contract_functions import backend_contract as backend_contract
from fairlead.testing.contract_functions import estimator_contract as estimator_contract
from fairlead.testing.contract_functions import journal_contract as journal_contract
from fairlead.testing.contract_functions import placement_contract as placement_contract
from fairlead.testing.contract_functions import policy_contract as policy_contract
from fairlead.testing.contract_functions import termination_contract as termination_contract
from fairlead.testing.contracts import AdmissionContract as AdmissionContract
from fairlead.testing.contracts import BackendContract as BackendContract
from fairlead.testing.contracts import EstimatorContract as EstimatorContract
from fairlead.testing.contracts import JournalContract as JournalContract
from fairlead.testing.contracts import PlacementContract as PlacementContract
from fairlead.testing.contracts import PolicyContract as PolicyContract
from fairlead.testing.contracts import TerminationContract as TerminationContract
from fairlead.testing.harness import Harness as Harness
from fairlead.testing.harness import Round as Round
from fairlead.testing.invariants import InvariantBroken as InvariantBroken
from fairlead.testing.invariants import check_events as check_events
from fairlead.testing.invariants import check_hosts as check_hosts
from fairlead.testing.invariants import check_state as check_state
