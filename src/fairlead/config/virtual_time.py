"""Schedulers for simulations. There a start takes what the simulation's costs say. Where that is a round or longer, who is
taken off at the next decision has done nothing, however often: then who starts is left alone as on a real cluster."""

from __future__ import annotations

from dataclasses import replace

from fairlead.backends.costs import Costs
from fairlead.config.scheduler import SchedulerConfig
from fairlead.config.wall_time import FIRST_STEP_S


def simulated_with(costs: Costs, config: SchedulerConfig) -> SchedulerConfig:
    """The same, with the `first_step_s` of a real cluster where starts are as long as rounds and it says none itself."""
    if config.first_step_s is not None or not 0.0 < costs.longest_start_s >= config.round_s:
        return config
    return replace(config, first_step_s=FIRST_STEP_S)
