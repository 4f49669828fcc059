"""Schedulers for a real cluster. There throughputs are measured, as there is no table to look them up in, and a start takes as
long as it takes: who is taken off before its first step has done nothing, however often."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairlead.config.scheduler import Part, SchedulerConfig
from fairlead.config.source import Value, read_yaml
from fairlead.core.errors import InputError
from fairlead.core.stages import Stages
from fairlead.registry import Registry

MEASURED = Part("measured")

_WATCHED = {"predicted": "watched"}
"""Estimations that say what `measured` does not, and those for real clusters that do: without what company costs, who shares by
it would never share."""

FIRST_STEP_S = 120.0
"""For which a job that has not told of a step since its start is left alone, unless the scheduler says otherwise."""


def read_scheduler(path: Path | str) -> SchedulerConfig:
    return _config(read_yaml(path))


def scheduler_of(data: Mapping[str, Any], source: str = "scheduler") -> SchedulerConfig:
    """From plain data, such as a journal's or a request's."""
    return _config(Value(dict(data), source, "", None, {}))


def compose(data: Mapping[str, Any], registry: Registry | None = None) -> Stages:
    """The stages of a scheduler; whatever is wrong with it is an error here, and not when it decides."""
    config = scheduler_of(data)
    stages = config.build(None, registry)
    if getattr(stages.estimation, "table", stages) is None:
        place = config.estimation.where or "scheduler"
        instead = _WATCHED.get(config.estimation.name, MEASURED.name)
        wanted = f"one that needs no table of throughputs, which no real cluster has: {instead}"
        raise InputError(place, wanted, field="estimation", value=config.estimation.name)
    if getattr(stages.policy, "everybody", False):
        wanted = "false: a real job has another size only where it says that it is elastic"
        raise InputError(config.policy.where or "scheduler", wanted, field="everybody", value=True)
    return stages


def _config(value: Value) -> SchedulerConfig:
    config = SchedulerConfig.from_value(value)
    if "estimation" not in value.mapping():  # a preset's is for simulations
        watched = _WATCHED.get(config.estimation.name)
        config = replace(config, estimation=MEASURED if watched is None else replace(config.estimation, name=watched))
    return config if config.first_step_s is not None else replace(config, first_step_s=FIRST_STEP_S)
