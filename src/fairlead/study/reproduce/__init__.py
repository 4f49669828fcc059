"""Gavel's evaluation (OSDI'20, §7) as studies: each is data about runs, and a reading of what came of them."""

from __future__ import annotations

from fairlead.study.reproduce.reproduce import Reproduction, chosen, reproduce
from fairlead.study.reproduce.scale import PUBLIC, SCALES, scale_named
from fairlead.study.reproduce.world import TABLE, World

__all__ = ["PUBLIC", "SCALES", "TABLE", "Reproduction", "World", "chosen", "reproduce", "scale_named"]
