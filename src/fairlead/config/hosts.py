"""How fast models are with so many CPUs and so much host memory for each worker, as a small YAML file, in the words that the
placement `synergy` has for the same.

cpus:
  ResNet-50: 3@1|9@2.4
memory_gb:
  ResNet-50 (batch size 64): 20@0.8|60@1
"""

from __future__ import annotations

from pathlib import Path

from fairlead.config.source import Value, read_yaml
from fairlead.core.sensitivity import EXPECTED, Curve, Sensitivity

_FIELDS = ("cpus", "memory_gb")


def read_hosts(path: Path | str) -> dict[str, Sensitivity]:
    """By model or kind."""
    fields = read_yaml(path).mapping(_FIELDS)
    cpus, memory = (_curves(fields[name]) if name in fields else {} for name in _FIELDS)
    return {name: Sensitivity(cpus.get(name), memory.get(name)) for name in {**cpus, **memory}}


def _curves(value: Value) -> dict[str, Curve]:
    return {name: _curve(entry) for name, entry in value.mapping().items()}


def _curve(value: Value) -> Curve:
    try:
        return Curve.parse(value.text(EXPECTED))
    except ValueError:
        raise value.error(EXPECTED) from None
