"""Put former defects of the runtime back, one at a time, and print the first seed of its simulation that finds each. All kinds
of faults may happen, as in `fairlead-sim`. `python benchmarks/put_back_defects.py` tries 1,000 seeds for each defect."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "runtime"))
from former_defects import DEFECTS, FormerDefect

from fairlead.testing.runtime_simulation.scenario import run_scenario

PER_PROCESS = 100  # seeds; then a process starts again with no files left open


def put_back(defect: FormerDefect) -> None:
    """In a process of its own, which runs with the defect from now on."""
    logging.disable(logging.CRITICAL)
    defect.put_back(pytest.MonkeyPatch())


def run(seed: int) -> tuple[int, str, float]:
    """A seed, the rule that it breaks, and its CPU time."""
    began = time.process_time()
    violation = run_scenario(seed).violation
    return seed, violation, time.process_time() - began


def main() -> int:
    """Returns 1 if a defect is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of defects (default: all)")
    parser.add_argument("--seeds", type=int, default=1000, help="for each defect (default: 1,000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--all", action="store_true", help="run all seeds, and count those that find a defect")
    given = parser.parse_args()
    missed = 0
    print("| defect | first seed | found by | rule broken |\n|---|---|---|---|", flush=True)
    for defect in (one for one in DEFECTS if not given.names or one.name in given.names):
        found: list[tuple[int, str]] = []
        tried, cpu_s = 0, 0.0
        with multiprocessing.Pool(1, put_back, (defect,), PER_PROCESS) as pool:
            for seed, violation, seconds in pool.imap(run, range(given.first, given.first + given.seeds)):
                tried, cpu_s = tried + 1, cpu_s + seconds
                if violation:
                    found.append((seed, violation))
                    if not given.all:
                        break
        missed += not found
        seed_of, rule = found[0] if found else ("none", "")
        print(f"| {defect.name}: {defect.what} | {seed_of} | {len(found)} of {tried:,} | {rule} |", flush=True)
        print(f"{defect.name}: {cpu_s:,.0f} s of CPU time", file=sys.stderr, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
