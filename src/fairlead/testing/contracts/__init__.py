"""The contracts that every plug-in passes. Subclass one in a test module, say what to make, and pytest does the rest."""

from fairlead.testing.contracts.admission_contract import AdmissionContract
from fairlead.testing.contracts.backend_contract import BackendContract
from fairlead.testing.contracts.estimator_contract import EstimatorContract, InPairs
from fairlead.testing.contracts.journal_contract import JournalContract, every_event
from fairlead.testing.contracts.placement_contract import PlacementContract
from fairlead.testing.contracts.policy_contract import PolicyContract
from fairlead.testing.contracts.scenes import SCENES, play
from fairlead.testing.contracts.termination_contract import TerminationContract

__all__ = [
    "SCENES",
    "AdmissionContract",
    "BackendContract",
    "EstimatorContract",
    "InPairs",
    "JournalContract",
    "PlacementContract",
    "PolicyContract",
    "TerminationContract",
    "every_event",
    "play",
]
