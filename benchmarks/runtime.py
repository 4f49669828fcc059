"""How a real cluster's processes bear up: leases, submissions, agents, recovery.

    python benchmarks/runtime.py                       # everything, a table; some minutes
    python benchmarks/runtime.py --only leases,submit  # some of: look, leases, submit, agents, recovery
    python benchmarks/runtime.py --json                # the same as one JSON object
    python benchmarks/runtime.py --picture             # draws docs/img/leases.png anew

Control planes are real `fairlead serve` processes with SQLite journals (synchronous = FULL) under `out/`, which should be on a
disk; clients, and agents that start nothing, are played over real connections. Wall times depend on what else the machine
does; CPU seconds hardly do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import runtime_control
import runtime_leases

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "img" / "leases.png"
PARTS = ("look", "leases", "submit", "agents", "recovery")

Goal = tuple[str, float, str, bool]
"""What, how much, the goal in words, and whether it is kept."""


def goals(measured: dict[str, Any]) -> list[Goal]:
    found: list[Goal] = []
    if look := measured.get("look"):
        for name, key in (("alone", "alone_ns"), ("in a gang", "gang_ns")):
            found.append((f"a look at a lease, {name}, ns", look[key], "at most 1,000", look[key] <= 1000))
        if (calls := look["system_calls_per_step"]) is not None:
            found.append(("system calls of a look", calls, "0", calls < 0.001))
    if rows := measured.get("leases"):
        last = rows[-1]
        ratio = last["central_mean_us"] / last["optimistic_us"]
        found.append((f"central over optimistic, {last['workers']} workers", ratio, "above 1.5 (Blox)", ratio > 1.5))
    for row in measured.get("submit", ()):
        goal = 1000 if row["batch"] > 1 else 200
        name = f"durable submissions a second, {row['batch']} at once"
        found.append((name, row["jobs_per_s"], f"at least {goal:,}", row["jobs_per_s"] >= goal))
    if agents := measured.get("agents"):
        found.append((f"cores for {agents['agents']:,} idle agents", agents["cores"], "below 1", agents["cores"] < 1))
    if recovery := measured.get("recovery"):
        name = f"seconds to the first answer, {recovery['jobs']:,} jobs"
        found.append((name, recovery["snapshot_s"], "below 10", recovery["snapshot_s"] < 10))
        found.append((f"{name}, no snapshot", recovery["no_snapshot_s"], "", True))
    return found


def measure(parts: list[str], folder: Path, jobs: int, idle_s: float) -> dict[str, Any]:
    measured: dict[str, Any] = {}
    steps: dict[str, Callable[[], Any]] = {
        "look": runtime_leases.look,
        "leases": lambda: runtime_leases.renewals(folder / "leases"),
        "submit": lambda: [runtime_control.submissions(folder / f"batch{batch}", batch) for batch in (50, 1)],
        "agents": lambda: runtime_control.many_agents(folder / "agents", runtime_control.Load(seconds=idle_s)),
        "recovery": lambda: runtime_control.recovery(folder / "recovery", jobs),
    }
    for name in parts:
        measured[name] = steps[name]()
    return measured


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    options.add_argument("--jobs", type=int, default=100_000, help="in the journal that is recovered")
    options.add_argument("--idle-s", type=float, default=60.0, help="how long idle agents are watched")
    options.add_argument("--picture", action="store_true")
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    wanted = set(given.only.split(","))
    if unknown := wanted - set(PARTS):
        options.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if given.picture:
        wanted.add("leases")
    Path("out").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="out") as folder:
        measured = measure([part for part in PARTS if part in wanted], Path(folder), given.jobs, given.idle_s)
    if given.picture:
        runtime_leases.draw(measured["leases"], PICTURE)
    if given.json:
        print(json.dumps(measured))
        return
    for name, value, goal, kept in goals(measured):
        print(f"{name:52s} {value:12,.4g}   {goal:16s} {'' if kept else 'MISSED'}")
    for number, row in enumerate(measured.get("leases", ())):
        if number == 0:
            print("  ".join(row))
        print("  ".join(f"{value:{len(name)},.{int(value % 1 > 0 and value < 10)}f}" for name, value in row.items()))


if __name__ == "__main__":
    main()
