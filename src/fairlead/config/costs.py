"""What starting and saving cost, as a small YAML file: one value for all, and others for some kinds (or models).

launch_s: 10
restart_s: 30
checkpoint_s: 5
checkpoint_every_s: 1800
kinds:
  ResNet-50: {restart_s: 60}                      # every batch size
  Transformer (batch size 64): {checkpoint_s: 20}
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fairlead.backends.costs import Costs
from fairlead.config.source import Value, read_yaml

_FIELDS = ("launch_s", "restart_s", "checkpoint_s", "checkpoint_every_s")


def read_costs(path: Path | str) -> Costs:
    return costs_from(read_yaml(path))


def costs_from(value: Value) -> Costs:
    fields = value.mapping((*_FIELDS, "kinds"))
    common = _costs(fields, Costs())
    kinds = fields["kinds"].mapping() if "kinds" in fields else {}
    return replace(common, by_kind={name: _costs(entry.mapping(_FIELDS), common) for name, entry in kinds.items()})


def _costs(fields: dict[str, Value], base: Costs) -> Costs:
    def seconds(name: str, default: float) -> float:
        every = name == "checkpoint_every_s"
        wanted = "seconds above 0" if every else "seconds from 0 on"
        return fields[name].number(wanted, above=every) if name in fields else default

    launch, restart, save, every = (seconds(name, getattr(base, name)) for name in _FIELDS)
    return Costs(launch, restart, save, every)
