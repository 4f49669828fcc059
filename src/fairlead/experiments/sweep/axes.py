"""The axes of a sweep: a load, a cluster, a cost, a part of the scheduler or a parameter of a part, with its values."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.config.registry import GROUPS, Registry
from fairlead.config.yaml_source import Value

PARTS = tuple(what for what in GROUPS if what != "format")
OF_SCHEDULER = ("rounds", "run_to_completion", "first_step_s")
OF_COSTS = ("launch_s", "restart_s", "checkpoint_s", "checkpoint_every_s")
PLAIN = ("load", "cluster", "jobs", *OF_SCHEDULER, *PARTS, *(f"costs.{name}" for name in OF_COSTS))


@dataclass(frozen=True)
class Axis:
    """A name, such as `load` or `admission.factor`, and the values it goes through, with their lines."""

    name: str
    values: tuple[Value, ...]

    @property
    def part(self) -> str:
        """The part that it is a parameter of, or empty."""
        part, dot, _ = self.name.partition(".")
        return part if dot and part in PARTS else ""

    @property
    def of_scheduler(self) -> bool:
        return bool(self.part) or self.name in (*PARTS, *OF_SCHEDULER)

    @property
    def numbers(self) -> bool:
        return all(isinstance(v.data, (int, float)) and not isinstance(v.data, bool) for v in self.values)


def with_axis_value(axis: Axis, value: Any, scheduler: Mapping[str, Any], registry: Registry) -> dict[str, Any] | None:
    """A scheduler's data with the value; None where its part has no such parameter."""
    if not axis.part:
        return {**scheduler, axis.name: value}
    parameter = axis.name.partition(".")[2]
    old = scheduler[axis.part]
    several = isinstance(old, list)
    changed = [_with(axis.part, part, parameter, value, registry) for part in (old if several else [old])]
    if all(part is None for part in changed):
        return None
    whole = [new if new is not None else part for new, part in zip(changed, old if several else [old])]
    return {**scheduler, axis.part: whole if several else whole[0]}


def parameters_of(what: str, part: Any, registry: Registry) -> list[str]:
    found = registry.load(what, _mapping(part)["name"])
    if dataclasses.is_dataclass(found):
        return [field.name for field in dataclasses.fields(found) if field.init and field.name != "table"]
    return [name for name in inspect.signature(found).parameters if name != "table"]


def format_axis_value(value: Any) -> str:
    """A value for tables."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float, Mapping)):
        return str(value)
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key}={format_axis_value(item)}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')}({rest})" if rest else str(value.get("name", ""))
    return f"{value:g}"


def axis_names(schedulers: Sequence[Mapping[str, Any]], registry: Registry) -> list[str]:
    """All possible names of axes for these schedulers."""
    names = dict.fromkeys(PLAIN)
    for scheduler in schedulers:
        for what in PARTS:
            given = scheduler[what] if isinstance(scheduler[what], list) else [scheduler[what]]
            names |= dict.fromkeys(f"{what}.{name}" for part in given for name in parameters_of(what, part, registry))
    return list(names)


def _with(what: str, part: Any, parameter: str, value: Any, registry: Registry) -> dict[str, Any] | None:
    return {**_mapping(part), parameter: value} if parameter in parameters_of(what, part, registry) else None


def _mapping(part: Any) -> dict[str, Any]:
    return dict(part) if isinstance(part, Mapping) else {"name": part}
