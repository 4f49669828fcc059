"""The golden cases: every policy and every preset on single-worker jobs and on gangs, and the digest of each event log.

As a program it prints or writes digests; `tests/golden/README.md` says how. A digest depends on the inputs and the seed only,
so it is the same on every machine, with every BLAS, and under every perturbation of `perturbation.py`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

DIGESTS = Path(__file__).parent / "digests.json"
DECISIONS = 2000
SHORT = 24
CLUSTER = "8xv100:4,8xp100:4,8xk80:4"


@dataclass(frozen=True, order=True)
class GoldenCase:
    """One scheduler on one workload of so many jobs."""

    kind: str  # policy or preset
    name: str
    workload: str  # single or gangs
    jobs: int = 0

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}, {self.workload}"

    def run(self) -> tuple[str, int]:
        """The digest of the event log, and the number of decisions."""
        from fairlead.api.scheduler import Scheduler
        from fairlead.config.schedulers import SchedulerConfig
        from fairlead.engine.codec import encode_line
        from fairlead.engine.journal import MemoryJournal
        from fairlead.experiments.simulate import Simulation, run_simulation
        from fairlead.simulator.costs import Costs
        from fairlead.testing import cluster
        from fairlead.workloads.generate import Generator

        # Loads under which jobs queue and the queue does not grow with the trace.
        rate, sizes = {"single": (4.5, "single"), "gangs": (1.5, {1: 0.5, 2: 0.2, 4: 0.2, 8: 0.1})}[self.workload]
        trace = Generator(
            jobs=self.jobs,
            jobs_per_hour=rate,
            durations=(1200.0, 3000.0, 7000.0, 16000.0, 30000.0),
            workers=sizes,
            users=4,
            accounts={"lab": 0.6, "shop": 0.4},
            priorities=0.2,
            slos=(1.5, 4.0, 20.0),
            memory=True,
        ).trace(seed=5)
        scheduler = Scheduler(self.name, round_s=360.0).config if self.kind == "policy" else SchedulerConfig.preset(self.name)
        journal = MemoryJournal()
        run = run_simulation(
            Simulation(trace, cluster(CLUSTER), scheduler, costs=Costs(10.0, 20.0, 5.0), seed=5), journal=journal
        )
        digest = hashlib.sha256()
        for event in journal:
            digest.update(encode_line(event))
        return digest.hexdigest()[:32], run.loop.decisions


def all_cases() -> Iterator[GoldenCase]:
    """Every policy and preset of the package, with no number of jobs yet."""
    from fairlead.config.registry import Registry, presets

    policies = [one.name for one in Registry.installed().of("policy") if one.origin == "fairlead"]
    for workload in ("single", "gangs"):
        yield from (GoldenCase("policy", name, workload) for name in policies)
        yield from (GoldenCase("preset", name, workload) for name in presets())


@dataclass(frozen=True)
class Written:
    """A case as it is written down: the digest of all of it, and of a short one with fewer jobs."""

    case: GoldenCase
    decisions: int
    digest: str
    short: str

    def expected(self, short: bool) -> tuple[GoldenCase, str]:
        return (replace(self.case, jobs=SHORT), self.short) if short else (self.case, self.digest)


def written(path: Path = DIGESTS) -> list[Written]:
    """The digests that are written down."""
    return [Written(GoldenCase(**one.pop("case")), **one) for one in json.loads(path.read_text())]


def _sized(case: GoldenCase, jobs: int) -> Written:
    """The case with so many jobs, or with as many more as make enough decisions."""
    short, _ = replace(case, jobs=SHORT).run()
    digest, made = replace(case, jobs=jobs).run()
    while made < DECISIONS:
        jobs = max(jobs + 20, int(jobs * 1.05 * DECISIONS / max(made, 1)))
        digest, made = replace(case, jobs=jobs).run()
    return Written(replace(case, jobs=jobs), made, digest, short)


def write(cases: Iterable[GoldenCase], path: Path) -> None:
    """Size and run the cases, and write each digest down at once; the others stay as they are."""
    rows = {replace(one.case, jobs=0): one for one in (written(path) if path.is_file() else ())}
    with ProcessPoolExecutor() as pool:
        sized = [pool.submit(_sized, case, rows[case].case.jobs if case in rows else SHORT) for case in cases]
        for done in as_completed(sized):
            one = done.result()
            rows[replace(one.case, jobs=0)] = one
            print(one.case.key, one.case.jobs, one.decisions, one.digest, flush=True)
            path.write_text(json.dumps([asdict(rows[case]) for case in sorted(rows)], indent=1) + "\n")


def check(one: Written, short: bool, perturbation: str = "") -> str:
    """The key of the case if its digest is another now; empty if it is the same."""
    _install(perturbation)
    case, digest = one.expected(short)
    return "" if case.run()[0] == digest else case.key


@lru_cache
def _install(perturbation: str) -> None:
    if perturbation:
        import perturbation as module

        module.install(perturbation)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="run every case and write the digests down")
    parser.add_argument("--only", nargs="*", default=[], help="parts of case names")
    parser.add_argument("--perturb", default="", help="sums, libm, rates, solver, path: see perturbation.py")
    parser.add_argument("--short", action="store_true", help="check the short digests only")
    given = parser.parse_args()

    def wanted(case: GoldenCase) -> bool:
        return not given.only or any(part in case.key for part in given.only)

    if given.write:
        write([case for case in all_cases() if wanted(case)], DIGESTS)
        return
    cases = [one for one in written() if wanted(one.case)]
    with ProcessPoolExecutor() as pool:
        count = len(cases)
        results = pool.map(check, cases, [given.short] * count, [given.perturb] * count)
        wrong = []
        for number, (one, key) in enumerate(zip(cases, results, strict=True), 1):
            print(f"{number} of {count}: {one.case.key}: {'another digest' if key else 'same'}", file=sys.stderr, flush=True)
            wrong += [key] if key else []
    print(f"{count - len(wrong)} of {count} digests are the same", *wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
