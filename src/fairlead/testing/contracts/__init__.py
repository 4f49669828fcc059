"""The contracts that every plug-in passes. Subclass one in a test module, say what to make, and pytest does the rest."""

from fairlead.testing.contracts.admission import AdmissionContract
from fairlead.testing.contracts.backend import BackendContract
from fairlead.testing.contracts.estimation import EstimationContract, InPairs
from fairlead.testing.contracts.journal import JournalContract, every_event
from fairlead.testing.contracts.placement import PlacementContract
from fairlead.testing.contracts.policy import PolicyContract
from fairlead.testing.contracts.scenes import SCENES, play
from fairlead.testing.contracts.termination import TerminationContract

__all__ = [
    "SCENES",
    "AdmissionContract",
    "BackendContract",
    "EstimationContract",
    "InPairs",
    "JournalContract",
    "PlacementContract",
    "PolicyContract",
    "TerminationContract",
    "every_event",
    "play",
]
