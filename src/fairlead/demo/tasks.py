"""The jobs of the demo: who comes when, and what each of them is there to show."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CLUSTER = "2xv100:2,2xk80:2"
STEP_S = 0.15


@dataclass(frozen=True)
class Coming:
    """A job and the second it is submitted at, counted from the first; with the second at which its owner cancels it."""

    second: float
    task: Mapping[str, Any]
    cancelled: float | None = None


def a_dozen() -> list[Coming]:
    """About 45 seconds on two nodes of two accelerators."""
    return [
        *(Coming(0.0, task(f"small-{n}", "small", steps)) for n, steps in enumerate((50, 60, 70, 40), 1)),
        Coming(1.0, task("endless", "endless", 10_000), cancelled=17.0),
        Coming(3.0, task("fails-once", "small", 45, "--fail-at", "22")),
        Coming(4.0, task("gang", "gang", 45, workers=2)),
        Coming(5.0, task("grows", "growing", 60, "--double-every", "20")),
        Coming(8.0, task("large-1", "large", 110)),
        Coming(10.0, task("large-2", "large", 90)),
        Coming(14.0, task("late-1", "small", 30)),
        Coming(16.0, task("late-2", "small", 30)),
    ]


def a_few() -> list[Coming]:
    """One of each, for those in a hurry: as long as one sees turns being taken on a slow machine too, where a job's first step
    comes late and until then nobody else has its place."""
    return [
        Coming(0.0, task("gang", "gang", 20, workers=2)),
        Coming(0.0, task("fails-once", "small", 24, "--fail-at", "18")),
        Coming(0.0, task("small", "small", 24)),
        Coming(0.0, task("grows", "growing", 24, "--double-every", "8")),
        Coming(0.0, task("endless", "endless", 10_000), cancelled=5.0),
        Coming(0.0, task("late", "small", 10)),
    ]


def task(name: str, kind: str, steps: int, *words: str, workers: int = 1) -> dict[str, Any]:
    run = [sys.executable, "-m", "fairlead.demo.job", "--steps", str(steps), "--step-s", str(STEP_S), *words]
    given = {"name": name, "kind": kind, "run": run, "steps": steps, "workers": workers, "retries": 1}
    path = os.environ.get("PYTHONPATH")
    return given | ({"env": {"PYTHONPATH": path}} if path else {})
