"""The contracts that every plug-in passes. Subclass one in a test module, say what to make, and pytest does the rest."""

from fairlead.testing.contracts.backend_contract import BackendContract as BackendContract
from fairlead.testing.contracts.journal_contract import JournalContract as JournalContract
from fairlead.testing.contracts.journal_contract import every_event as every_event
from fairlead.testing.contracts.scenes import SCENES as SCENES
from fairlead.testing.contracts.scenes import play as play
from fairlead.testing.contracts.stage_contracts import AdmissionContract as AdmissionContract
from fairlead.testing.contracts.stage_contracts import EstimatorContract as EstimatorContract
from fairlead.testing.contracts.stage_contracts import InPairs as InPairs
from fairlead.testing.contracts.stage_contracts import PlacementContract as PlacementContract
from fairlead.testing.contracts.stage_contracts import PolicyContract as PolicyContract
from fairlead.testing.contracts.stage_contracts import TerminationContract as TerminationContract
