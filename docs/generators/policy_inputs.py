"""What a policy may read of jobs: the columns of `view.jobs`, with units, from the comments and docstrings of the class."""

from __future__ import annotations

import inspect

import numpy as np

from fairlead.core.columns import JobColumns
from generators.markdown import code, meanings, prose, sentence, table

INTERNAL = ("phase", "base_steps", "since_s", "settled_run_s", "settled_accelerator_s", "ended_s", "runners", "waiters")
"""What the state computes other columns from, and what every job of `view.jobs` has alike."""

UNITS = {"_s": "seconds", "_gb": "GB", "steps": "steps", "steps_done": "steps", "steps_left": "steps", "rate": "steps/s"}
UNITS |= {"workers": "GPUs", "held": "GPUs", "run_started_steps": "steps", "accelerator_s": "GPU seconds"}


def job_columns() -> str:
    """Every column with its unit and meaning: those of the store, then those computed from them."""
    said, rows = meanings(JobColumns), []
    for name, found in vars(JobColumns).items():
        stored, computed = hasattr(found, "dtype"), hasattr(found, "find")
        if (stored or computed) and name not in INTERNAL and name[0] != "_":
            text = said.get(name) or (inspect.getdoc(found.find) or "" if computed and not stored else "")
            rows.append([code(name), _unit(name, found, stored), sentence(prose(text))])
    return table(["column", "unit", "meaning"], rows)


def _unit(name: str, found: object, stored: bool) -> str:
    ending = next((UNITS[end] for end in ("_s", "_gb") if name.endswith(end)), "")
    if not stored and not ending and name not in UNITS:
        return "true or false"
    whole = "number" if getattr(found, "dtype", None) is np.float64 else "whole number"
    return UNITS.get(name) or ending or whole
