"""`fairlead-sim`: run seeds of the runtime's simulation, print a failing one, and reduce its faults to those that matter."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.core.errors import FairleadError

try:
    from fairlead.testing.runtime_simulation.injected_faults import KINDS, Fault
    from fairlead.testing.runtime_simulation.scenario import RunResult, run_scenario
except FairleadError as problem:  # without greenlet
    sys.exit(f"fairlead-sim: error: {problem}")

_PER_PROCESS = 100  # seeds; then a process starts again with no files left open
_AT_ONCE = 5  # seeds that a process takes
_PROGRESS_EVERY = 500  # seeds, where standard error is not a terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns 1 if a rule is broken."""
    parser = argparse.ArgumentParser(prog="fairlead-sim", description="Simulate the runtime under faults that a seed chooses.")
    parser.add_argument("--seed", type=int, default=None, help="run this seed only")
    parser.add_argument("--seeds", type=int, default=200, help="run this many seeds (default: 200)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--processes", type=int, default=None, help="at once (default: one for each core)")
    parser.add_argument("--trace", action="store_true", help="print what happened in the run of --seed")
    parser.add_argument("--shrink", action="store_true", help="find the fewest faults of --seed that still break a rule")
    given = parser.parse_args(arguments)
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        if given.seed is not None:
            return _one(given.seed, trace=given.trace, reduce=given.shrink)
        return _many(range(given.first, given.first + given.seeds), given.processes)
    finally:
        logging.disable(before)


def shrink(faults: Sequence[Fault], breaks: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Remove faults as long as the rest still breaks a rule: first halves, then ever smaller parts."""
    kept, part = list(faults), max(1, len(faults) // 2)
    while part:
        begin = 0
        while begin < len(kept):
            fewer = kept[:begin] + kept[begin + part :]
            if breaks(fewer):
                kept = fewer
            else:
                begin += part
        part //= 2
    return kept


def _one(seed: int, *, trace: bool, reduce: bool) -> int:
    result = run_scenario(seed)
    if reduce and result.violation:
        fewest = _shrunk(result)
        result = run_scenario(seed, fewest)
        print(f"{len(fewest)} faults are enough:")
        for fault in fewest:
            print(f"  {fault}")
    if trace:
        for at_s, subject, text in result.log:
            print(f"{at_s:10.3f}  {subject}: {text}")
    print(f"seed {seed}: {result.violation or 'all rules hold'}")
    return 1 if result.violation else 0


def _shrunk(result: RunResult) -> list[Fault]:
    return shrink(result.faults, lambda faults: bool(run_scenario(result.seed, faults).violation))


@dataclass(frozen=True)
class _Short:
    """What is kept of a run."""

    seed: int
    violation: str
    chosen: list[str]  # kinds of faults
    took_effect: list[str]
    events: int
    commands: int
    cpu_s: float


def _many(seeds: range, processes: int | None) -> int:
    chosen: Counter[str] = Counter()
    effects: Counter[str] = Counter()
    broken = events = commands = 0
    cpu_s = 0.0
    # Not a `ProcessPoolExecutor`: one whose processes end after some tasks can wait forever.
    with multiprocessing.Pool(processes, maxtasksperchild=_PER_PROCESS // _AT_ONCE) as pool:
        for number, run in enumerate(pool.imap(_short, seeds, chunksize=_AT_ONCE), 1):
            chosen.update(run.chosen)
            effects.update(run.took_effect)
            events, commands, cpu_s = events + run.events, commands + run.commands, cpu_s + run.cpu_s
            if run.violation:
                broken += 1
                print(f"seed {run.seed}: {run.violation}", flush=True)
            if sys.stderr.isatty() or number % _PROGRESS_EVERY == 0:
                end = "" if sys.stderr.isatty() else "\n"
                print(f"\r{number:,} of {len(seeds):,} seeds, {broken} broken", end=end, file=sys.stderr, flush=True)
    print(f"{broken} of {len(seeds):,} seeds break a rule; {commands:,} commands, {events:,} events in journals")
    print(f"{cpu_s:,.0f} s of CPU time, {cpu_s / max(len(seeds), 1):.3f} s for each seed")
    print(f"  {'kind of fault':28} {'injected':>9} {'took effect':>12} {'for each seed':>14}")
    for kind in KINDS:
        each = effects[kind] / max(len(seeds), 1)
        print(f"  {kind:28} {chosen[kind]:9,} {effects[kind]:12,} {each:14.2f}")
    return 1 if broken else 0


def _short(seed: int) -> _Short:
    logging.disable(logging.CRITICAL)
    began = time.process_time()
    result = run_scenario(seed)
    kinds, effects = ([fault.kind for fault in faults] for faults in (result.faults, result.took_effect))
    return _Short(seed, result.violation, kinds, effects, result.events, result.commands, time.process_time() - began)


if __name__ == "__main__":
    sys.exit(main())
