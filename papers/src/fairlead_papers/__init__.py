"""Papers' evaluations, run again as studies: each is data about runs, and a reading of what came of them."""

from __future__ import annotations

from fairlead_papers.public_data import TABLE, GavelInputs
from fairlead_papers.reproduce import Reproduction, reproduce
from fairlead_papers.study import PUBLIC, TRIAL, Paper

__all__ = ["PUBLIC", "TABLE", "TRIAL", "GavelInputs", "Paper", "Reproduction", "reproduce"]
