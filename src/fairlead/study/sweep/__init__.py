"""Sweeps: schedulers over loads, clusters, seeds and any parameter of any part, from a small file. What has run is kept, and a
second run goes on from there."""

from __future__ import annotations

from fairlead.study.sweep.reading import read_sweep
from fairlead.study.sweep.sweep import Sweep, Swept, run_sweep

__all__ = ["Sweep", "Swept", "read_sweep", "run_sweep"]
