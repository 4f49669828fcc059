"""Sweeps: schedulers over loads, clusters, seeds and any parameter of any part, from a small file. Finished runs are kept."""

from __future__ import annotations

from fairlead.experiments.sweep.sweep_file import read_sweep
from fairlead.experiments.sweep.sweep_run import Sweep, SweepResult, run_sweep

__all__ = ["Sweep", "SweepResult", "read_sweep", "run_sweep"]
