"""The contracts that every plug-in passes. Subclass one in a test module, say what to make, and pytest does the rest."""

from fairlead.testing.contracts.backend import BackendContract
from fairlead.testing.contracts.estimation import EstimationContract, InPairs
from fairlead.testing.contracts.journal import JournalContract, every_event
from fairlead.testing.contracts.placement import PlacementContract
from fairlead.testing.contracts.policy import PolicyContract
from fairlead.testing.contracts.scenes import SCENES, play

__all__ = [
    "SCENES",
    "BackendContract",
    "EstimationContract",
    "InPairs",
    "JournalContract",
    "PlacementContract",
    "PolicyContract",
    "every_event",
    "play",
]
