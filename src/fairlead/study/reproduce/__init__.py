"""Papers' evaluations, run again as studies: each is data about runs, and a reading of what came of them."""

from __future__ import annotations

from fairlead.study.reproduce.paper import PUBLIC, TRIAL, Paper
from fairlead.study.reproduce.reproduce import Reproduction, reproduce
from fairlead.study.reproduce.world import TABLE, World

__all__ = ["PUBLIC", "TABLE", "TRIAL", "Paper", "Reproduction", "World", "reproduce"]
