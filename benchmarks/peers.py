"""Fairlead beside the solvers that schedulers usually call: CPU milliseconds of one cold allocation, in one run.

    python benchmarks/peers.py             # a table; make bench-peers installs what it needs
    python benchmarks/peers.py --jobs 512
    python benchmarks/peers.py --json

cvxpy and SciPy get the textbook program, as Gavel's paper writes it: a variable for every job and GPU type. The time is that of
building and solving it. Fairlead's is that of the whole policy. Jobs and clusters are those of `benchmarks/policies.py`. The
objective that each program reaches is compared with Fairlead's allocation, so that a wrong answer cannot be fast.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.config.registry import Registry
from fairlead.config.schedulers import make, parse_part
from fairlead.core.cluster import Floats
from fairlead.core.snapshot import Snapshot
from fairlead.workloads.catalogue import catalogue
from fairlead.workloads.table_files import read_throughputs
from policies import TABLE, TYPES, Moment, timed

POLICIES = {"max-min (LAS)": "max-min-fairness-perf", "makespan": "min-total-duration-perf"}
CLOSE = 1e-4
"""Clarabel ends at about 1e-7; answers that differ by more than this are marked."""


@dataclass(frozen=True)
class Textbook:
    """max t such that Σ_j gain_mj·x_mj ≥ t for every job m, within its time and the cluster."""

    gain: Floats
    workers: Floats
    capacity: Floats

    @classmethod
    def of(cls, view: Snapshot, objective: str) -> Textbook:
        rates, workers, capacity = view.rates.of_jobs, view.jobs.workers.astype(np.float64), view.capacity.astype(np.float64)
        if objective == "makespan":
            return cls(rates / view.jobs.steps_left[:, None], workers, capacity)
        equal = rates @ (capacity / capacity.sum())
        return cls(rates * (workers / equal)[:, None], workers, capacity)

    def level(self, x: Floats) -> float:
        return float((self.gain * x).sum(axis=1).min())

    def by_cvxpy(self, solver: str) -> Floats:
        import cvxpy as cp

        x = cp.Variable(self.gain.shape, nonneg=True)
        keeps = [cp.sum(x, axis=1) <= 1, self.workers @ x <= self.capacity]
        scale = self.gain.max()
        least = cp.min(cp.sum(cp.multiply(self.gain / scale, x), axis=1))
        cp.Problem(cp.Maximize(least), keeps).solve(solver=solver)
        return np.asarray(x.value)

    def by_scipy(self) -> Floats:
        from scipy.optimize import linprog
        from scipy.sparse import csr_array

        jobs, types = self.gain.shape
        column = np.arange(jobs * types)
        job, type_ = np.divmod(column, types)
        scale = self.gain.max()
        rows = np.concatenate((job, jobs + job, 2 * jobs + type_, np.arange(jobs)))
        columns = np.concatenate((column, column, column, np.full(jobs, jobs * types)))
        values = np.concatenate((-self.gain.ravel() / scale, np.ones(jobs * types), self.workers[job], np.ones(jobs)))
        matrix = csr_array((values, (rows, columns)), shape=(2 * jobs + types, jobs * types + 1))
        room = np.concatenate((np.zeros(jobs), np.ones(jobs), self.capacity))
        cost = np.append(np.zeros(jobs * types), -1.0)
        found = linprog(cost, A_ub=matrix, b_ub=room, method="highs")
        return np.asarray(found.x[:-1].reshape(jobs, types))


PEERS: dict[str, Callable[[Textbook], Floats]] = {
    "cvxpy+Clarabel": lambda book: book.by_cvxpy("CLARABEL"),
    "cvxpy+HiGHS": lambda book: book.by_cvxpy("HIGHS"),
    "SciPy linprog": Textbook.by_scipy,
}


def rows(jobs: int, times: int) -> Iterator[dict[str, Any]]:
    table = (read_throughputs(TABLE.resolve()) if TABLE.is_file() else catalogue()).for_types(TYPES)
    tiny = Textbook(np.ones((2, 1)), np.ones(2), np.ones(1))
    for solve in PEERS.values():  # imports are not measured
        with suppress(Exception):
            solve(tiny)
    for objective, policy in POLICIES.items():
        for alike in (True, False):
            for gangs in (False, True):
                moment = Moment(table, jobs, gangs, alike=alike)
                view, mine, shares = moment.view(), list[float](), list[Floats]()
                book = Textbook.of(view, objective)
                for _ in range(times):
                    allocator, fresh = make("policy", parse_part(policy), Registry.installed()), moment.view()
                    answers = list[Any]()
                    mine.append(timed(lambda a=allocator, v=fresh, to=answers: to.append(a.allocate(v, None)[0])))
                    shares.append(answers[0].matrix(view.jobs.number, len(view.capacity)))
                level, fairlead = book.level(shares[0]), float(np.median(mine))
                peers = dict[str, Any]()
                for name, solve in PEERS.items():
                    took, notes = list[float](), set[str]()
                    for _ in range(times):
                        try:
                            found = list[Floats]()
                            took.append(timed(lambda s=solve, b=book, to=found: to.append(s(b))))
                            if abs(book.level(found[0]) - level) > CLOSE * level:
                                notes.add("another objective")
                        except Exception as error:
                            notes.add("not installed" if isinstance(error, ImportError) else type(error).__name__)
                    ms = float(np.median(took)) if took else None
                    peers[name] = {"ms": ms, "ratio": ms / fairlead if ms else None, "notes": sorted(notes)}
                what = ("26 kinds" if not gangs else "83 kinds") if alike else "± 1 %"
                workers = "one to eight" if gangs else "one"
                yield {"objective": objective, "rates": what, "workers": workers, "fairlead": fairlead, "peers": peers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--jobs", type=int, default=2048)
    parser.add_argument("--times", type=int, default=3, help="the median of so many runs")
    given = parser.parse_args()
    found = list[dict[str, Any]]()
    if not given.json:
        print(f"{given.jobs} jobs, CPU ms of one allocation (times Fairlead's)\n")
        print(f"{'objective':<16}{'rates':<10}{'workers':<14}{'Fairlead':>9}", *(f"{name:>20}" for name in PEERS), sep="")
    for row in rows(given.jobs, given.times):
        found.append(row)
        if not given.json:
            cells = []
            for peer in row["peers"].values():
                text = "" if peer["ms"] is None else f"{peer['ms']:.0f} ({peer['ratio']:.1f}×)"
                cells.append(f"{' '.join([text, *peer['notes']]).strip():>20}")
            print(
                f"{row['objective']:<16}{row['rates']:<10}{row['workers']:<14}{row['fairlead']:>9.1f}",
                *cells,
                sep="",
                flush=True,
            )
    if given.json:
        print(json.dumps({"jobs": given.jobs, "rows": found}))


if __name__ == "__main__":
    main()
