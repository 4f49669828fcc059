"""Papers' evaluations, run again as studies: each is data about runs, and a reading of what came of them."""

from __future__ import annotations

from fairlead.experiments.inputs import TABLE, ExperimentInputs
from fairlead_papers.reproduce import Reproduction, reproduce
from fairlead_papers.study import PUBLIC, TRIAL, Paper

__all__ = ["PUBLIC", "TABLE", "TRIAL", "ExperimentInputs", "Paper", "Reproduction", "reproduce"]
