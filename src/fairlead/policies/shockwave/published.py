"""The program that Shockwave's published results were made with, beside the one that its text states: a job's projected end
is to be at most ρ_max times its fair end, as a constraint; H is the longest run time left alone (a window with
`loads=False`). Where the constraint cannot be kept by all, it is dropped, and who would break it counts by its ratio to a
power instead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.core.errors import InputError
from fairlead.policies.shockwave.fairness import Deadlines
from fairlead.policies.shockwave.window import Window


def published(window: Window, ends: Deadlines, rho_max: float, power: float) -> Window:
    """The window as that program sees it."""
    if not power >= 0:
        raise InputError("shockwave planner", "a number from 0 on", field="power", value=power)
    if not ends.late.any() and int(ends.least @ window.workers) <= window.room:
        return window.at_least(ends.least)
    factor = np.where(ends.ratio > rho_max, ends.ratio**power, 1.0)
    return replace(window, worth=window.worth * factor[:, None], weight=window.weight * factor)
