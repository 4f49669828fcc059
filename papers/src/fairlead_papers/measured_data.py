"""Measured sets that only evaluations need, beside those that ship with Fairlead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairlead.profiling.results import measured_set, measured_sets, read_results

DATA = Path(__file__).parent / "data"


def evaluation_sets() -> tuple[str, ...]:
    """The names of all measured sets, those of Fairlead included."""
    return tuple(sorted({*measured_sets(), *(path.stem for path in DATA.glob("*.jsonl"))}))


def evaluation_set(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A measured set: what it was measured on, and the measurements."""
    return read_results(DATA / f"{name}.jsonl") if (DATA / f"{name}.jsonl").exists() else measured_set(name)
