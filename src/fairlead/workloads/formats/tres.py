"""Slurm's trackable resources, as in `billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=64G,node=1`: what a scheduler for
accelerators wants to know of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairlead.workloads.formats.fields import MOST_WORKERS, BadField

_EXAMPLE = "resources such as cpu=8,gres/gpu:a100=2,mem=64G"
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP]?)")
_IN_GB = {"K": 2.0**-20, "": 2.0**-10, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}
_UNTYPED = "gres/gpu"


@dataclass(frozen=True)
class Resources:
    """Of a whole job."""

    accelerators: int = 0
    types: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_gb: float = 0.0


def resources(field: str, text: str) -> Resources:
    """What the text grants. The count without a type includes those with one; where it is missing, they are summed."""
    untyped: int | None = None
    typed: dict[str, int] = {}
    cpus = memory_gb = 0.0
    for part in text.split(",") if text else ():
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise BadField(field, text, _EXAMPLE)
        if key == _UNTYPED:
            untyped = _count(field, text, value)
        elif key.startswith(_UNTYPED + ":"):
            typed[key[len(_UNTYPED) + 1 :].lower()] = _count(field, text, value)
        elif key == "cpu":
            cpus = float(_count(field, text, value))
        elif key == "mem":
            memory_gb = _memory_gb(field, text, value)
    total = sum(typed.values()) if untyped is None else untyped
    return Resources(total, tuple(kind for kind, count in typed.items() if count), cpus, memory_gb)


def _count(field: str, text: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,7}", value) or int(value) > MOST_WORKERS:
        raise BadField(field, text, f"whole numbers from 0 to {MOST_WORKERS:,} in {_EXAMPLE}")
    return int(value)


def _memory_gb(field: str, text: str, value: str) -> float:
    match = _MEMORY.fullmatch(value.upper().rstrip("NC"))
    if match is None:
        raise BadField(field, text, _EXAMPLE)
    return float(match[1]) * _IN_GB[match[2]]
