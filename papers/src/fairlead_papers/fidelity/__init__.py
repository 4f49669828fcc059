"""How true the simulator is: the same jobs on a real cluster of this machine, in processes that sleep in the place of
computing, and in a simulation that is told what another run has measured."""

from fairlead_papers.fidelity.beside import Beside, NotFinished, beside
from fairlead_papers.fidelity.measuring import Measured, measured
from fairlead_papers.fidelity.real import RealCluster
from fairlead_papers.fidelity.sleepers import in_whole_steps

__all__ = ["Beside", "Measured", "NotFinished", "RealCluster", "beside", "in_whole_steps", "measured"]
